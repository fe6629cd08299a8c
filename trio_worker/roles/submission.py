# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""An engine call that is noted while a request is planned, and made when the plan is carried out.

Request building is the incumbent's, by inheritance: its ``generate`` runs with a recorder in place
of the engine, and where it would start to stream it hands us what it has recorded.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from compat.handover import Chunk


class Submission:
    """An ``async_generate`` call that has not been made yet."""

    __slots__ = ("_call", "kwargs")

    def __init__(self, call: Callable[..., Awaitable[AsyncIterator[Chunk]]], kwargs: Any) -> None:
        self._call = call
        self.kwargs: dict[str, Any] = kwargs

    async def submit(self) -> AsyncIterator[Chunk]:
        """asyncio. Make the call; SGLang's generator does nothing until it is iterated."""
        return await self._call(**self.kwargs)

    @property
    def choices(self) -> int:
        """Streams that the engine finishes for this call (1 for beam search)."""
        return choices_of(self.kwargs.get("sampling_params"))

    async def __aiter__(self) -> AsyncIterator[Submission]:
        """asyncio. Where the incumbent would pass the engine's chunks on as they are: itself."""
        yield self


class EngineRecorder:
    """The engine as a request sees it while it is planned: ``async_generate`` is noted, not run.

    One for all requests: Dynamo looks up what the call accepts, and remembers it by function.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        call = engine.async_generate

        @functools.wraps(call)
        async def record(**kwargs: Any) -> Submission:
            return Submission(call, kwargs)

        self.async_generate: Callable[..., Awaitable[Any]] = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class SubmissionRecorder(EngineRecorder):
    """The same for handlers that wrap the engine's stream in generators of their own.

    They get a stream that ends at once; what they would have submitted waits here, by its rid.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._submissions: dict[str, Submission] = {}
        record = self.async_generate

        @functools.wraps(record)
        async def keep(**kwargs: Any) -> AsyncIterator[Chunk]:
            self._submissions[kwargs["rid"]] = await record(**kwargs)
            return NoChunks()

        self.async_generate = keep

    def take(self, rid: str) -> Submission | None:
        """asyncio. What was recorded under `rid`, once."""
        return self._submissions.pop(rid, None)


class NoChunks:
    """An engine's stream that has ended."""

    def __aiter__(self) -> NoChunks:
        return self

    async def __anext__(self) -> Chunk:
        raise StopAsyncIteration


class NativeSubmission:
    """SGLang's own ``generate_request``, wrapped by Dynamo, with what tells its streams."""

    __slots__ = ("choices", "stream")

    def __init__(self, stream: AsyncIterator[Chunk], choices: int) -> None:
        self.stream = stream
        self.choices = choices

    async def submit(self) -> AsyncIterator[Chunk]:
        """asyncio. The stream; it does nothing until it is iterated."""
        return self.stream


def native_choices(sampling_params: Any, input_ids: Any) -> int:
    """Streams that SGLang finishes for one native request: each of its prompts has its own."""
    if isinstance(sampling_params, list):
        return choices_of(sampling_params)
    prompts = len(input_ids) if input_ids and isinstance(input_ids[0], list) else 1
    return prompts * choices_of(sampling_params)


def choices_of(sampling_params: Any) -> int:
    """Streams that SGLang finishes for one prompt: ``n``, but 1 for beam search."""
    if isinstance(sampling_params, list):
        return sum(choices_of(params) for params in sampling_params) or 1
    if not isinstance(sampling_params, Mapping):
        return 1
    if (sampling_params.get("beam_width") or 1) > 1:
        return 1
    return sampling_params.get("n") or 1
