# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What every LLM role's control endpoints share: discovery that follows pauses, LoRA, one answer.

Mixed in before the incumbent's handler classes, whose methods do the work.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamo.sglang.request_handlers.handler_base import BaseWorkerHandler as _Base

    from compat.runtime import WorkerRuntime
else:
    _Base = object

Answer = dict[str, Any]

SHUTTING_DOWN: Answer = {"status": "error", "message": "the worker is shutting down"}


class LoraLocks(weakref.WeakValueDictionary[str, asyncio.Lock]):
    """One lock for each adapter, for as long as anybody holds it or waits for it.

    The incumbent takes a lock out of its map while others still wait for it; the next caller then
    makes a second one, and two loads of an adapter run at once (defect B14).
    """

    def pop(self, *_args: Any) -> None:  # type: ignore[override]
        """Nothing: a lock goes when its last user does."""


class Control(_Base):  # type: ignore[misc]  # Dynamo has no types
    """Control endpoints and discovery of an LLM handler."""

    _runtime: WorkerRuntime

    def attach_runtime(self, runtime: WorkerRuntime) -> None:
        """Trio. Before any endpoint is served."""
        self._runtime = runtime
        self._lora_load_locks = LoraLocks()

    async def _sync_discovery_with_sglang_pause_state(self) -> None:
        """asyncio. Advertised iff SGLang is not paused; never again once withdrawn (rule 123)."""
        manager = self.engine.tokenizer_manager
        if hasattr(manager, "is_pause"):
            await self._runtime.advertise(self.generate_endpoint, not manager.is_pause)

    async def load_lora(self, request: Any = None) -> AsyncGenerator[Answer, None]:
        """asyncio. One answer; refused during a shutdown (rule 123)."""
        if self._runtime.registration_refused:
            yield SHUTTING_DOWN
        else:
            yield await _only(super().load_lora(request))

    async def unload_lora(self, request: Any = None) -> AsyncGenerator[Answer, None]:
        """asyncio. One answer."""
        yield await _only(super().unload_lora(request))

    async def clear_kv_blocks(self, request: Any = None) -> AsyncGenerator[Answer, None]:
        """asyncio. One answer."""
        yield await _only(super().clear_kv_blocks(request))


async def _only(answers: AsyncGenerator[Answer, None]) -> Answer:
    """asyncio. The one answer of `answers`, run to its end.

    The incumbent yields it with a lock held: a consumer that goes away there would keep the lock
    until the garbage collector finds the generator (defect B15).
    """
    collected = [answer async for answer in answers]
    return collected[0]
