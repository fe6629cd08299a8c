# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What stands around a multimodal worker: embeddings that arrive, and another worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from dynamo.sglang.request_handlers.multimodal.worker_handler import EmbeddingsProcessor

from .journal import Journal

ROWS = 4
"""Embedding rows of a request: its image has so many tokens."""

BOOTSTRAP = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 17}


@dataclass(frozen=True)
class Embeddings:
    """How a request's embeddings arrive. Times are virtual seconds."""

    after: float = 0.0
    error: Exception | None = None
    rows: int = ROWS


@dataclass(frozen=True)
class OtherWorker:
    """What another worker answers, and when."""

    after: float = 0.0
    """Until it takes the request."""
    refusal: BaseException | None = None
    """Raised instead of taking it."""
    answers: Sequence[Any] = field(default_factory=lambda: (json.dumps(BOOTSTRAP),))
    every: float = 0.1
    error: BaseException | None = None
    """Raised after the answers; None: the stream ends."""
    holds: bool = False
    """After the answers comes nothing more."""


class FakeEmbeddingsProcessor(EmbeddingsProcessor):  # type: ignore[misc]  # Dynamo has no types
    """Dynamo's processor without a transfer; says in the journal what is held."""

    def __init__(self, journal: Journal, script: Embeddings) -> None:
        self._journal = journal
        self._script = script
        self._next = 1
        self.held: set[int] = set()

    async def process_embeddings(self, request: Any) -> tuple[torch.Tensor, int]:
        self._journal.record("embeddings", "embeddings asked")
        if self._script.after:
            await asyncio.sleep(self._script.after)
        if self._script.error is not None:
            raise self._script.error
        tensor_id, self._next = self._next, self._next + 1
        self.held.add(tensor_id)
        self._journal.record("embeddings", "embeddings received", detail=tensor_id)
        return torch.ones((self._script.rows, 8)), tensor_id

    def release_embeddings(self, tensor_id: int) -> None:
        self.held.remove(tensor_id)
        self._journal.record("embeddings", "embeddings released", detail=tensor_id)


class FakeClient:
    """Dynamo's client of one other worker."""

    def __init__(self, journal: Journal, script: OtherWorker) -> None:
        self._journal = journal
        self._script = script
        self.requests: list[Any] = []
        self.contexts: list[Any] = []

    async def generate(self, request: Any, context: Any = None) -> AsyncIterator[Any]:
        self._journal.record("other worker", "other worker asked")
        self.requests.append(request)
        self.contexts.append(context)
        if self._script.after:
            await asyncio.sleep(self._script.after)
        if self._script.refusal is not None:
            raise self._script.refusal
        return self._answers()

    async def round_robin(self, request: Any, context: Any = None) -> AsyncIterator[Any]:
        return await self.generate(request, context)

    async def wait_for_instances(self) -> list[int]:
        return [1]

    async def _answers(self) -> AsyncIterator[Any]:
        try:
            for answer in self._script.answers:
                if self._script.every:
                    await asyncio.sleep(self._script.every)
                yield SimpleNamespace(data=lambda answer=answer: answer)
            if self._script.error is not None:
                raise self._script.error
            if self._script.holds:
                await asyncio.get_running_loop().create_future()
        finally:
            self._journal.record("other worker", "answers let go")


def image(rows: int = ROWS) -> dict[str, Any]:
    """One encoded image of ``SglangMultimodalRequest.multimodal_inputs``."""
    return {"image_grid_thw": [1, 4, rows], "num_mm_tokens": rows}
