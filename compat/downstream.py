# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Calls to another worker, seen from a request: asyncio, as Dynamo's client is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Downstream:
    """Dynamo's client for the calls of one request, whose `context` goes with each.

    The context is what ends them: a client's stop reaches the other worker with it. What a call
    answers with is kept until the request lets go, since the runtime takes a dropped stream for a
    consumer that left. `error` is what the other worker, or the way there, failed with.
    """

    def __init__(self, client: Any, context: Any) -> None:
        self._client = client
        self._context = context
        self._streams: list[AsyncIterator[Any]] = []
        self.error: Exception | None = None

    async def generate(self, request: Any, **_options: Any) -> AsyncIterator[Any]:
        """asyncio. As ``Client.generate``; raises what the call raises."""
        return await self._call(self._client.generate, request)

    async def round_robin(self, request: Any, **_options: Any) -> AsyncIterator[Any]:
        """asyncio. As ``Client.round_robin``; raises what the call raises."""
        return await self._call(self._client.round_robin, request)

    async def _call(
        self, call: Callable[..., Awaitable[AsyncIterator[Any]]], request: Any
    ) -> AsyncIterator[Any]:
        try:
            stream = await call(request, context=self._context)
        except Exception as error:
            self.error = error
            raise
        self._streams.append(stream)
        return _Answers(stream, self)

    def close(self) -> None:
        """Trio or asyncio. The request needs no more of it."""
        self._streams.clear()
        self.error = None


class _Answers:
    """One stream of answers; not a generator, since who takes only the first leaves it half-way."""

    def __init__(self, stream: AsyncIterator[Any], call: Downstream) -> None:
        self._stream = stream
        self._call = call

    def __aiter__(self) -> _Answers:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._call.error = error
            raise


async def to_its_end(make: Callable[[], Awaitable[T]], seconds: float) -> T:
    """asyncio. Await `make()`; cancelled, wait for its end nevertheless, then be cancelled.

    For what must not stop half-way, such as a transfer into a buffer that others will use. The
    wait after a cancellation lasts `seconds` at most, or until cancelled again; then the call is
    cancelled too.
    """
    inner = asyncio.ensure_future(make())
    try:
        return await asyncio.shield(inner)
    except asyncio.CancelledError:
        if not inner.done():
            await asyncio.wait((inner,), timeout=seconds)
        raise
    finally:
        inner.cancel()
