# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What every LLM role's control endpoints and engine routes share.

Each call belongs to the engine and runs to its end; discovery follows pauses; locks are held for
no longer than the work takes. Mixed in before the incumbent's handler classes, whose methods do
the work.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from dynamo.sglang import engine_routes
from dynamo.sglang.gateway import follow_pause_broadcasts

from compat.control_calls import ControlCalls, run_in_thread
from trio_worker.roles.discovery import DiscoveryFollower

if TYPE_CHECKING:
    from dynamo.sglang.request_handlers.handler_base import BaseWorkerHandler as _Base

    from compat.runtime import WorkerRuntime
    from trio_worker.worker import Worker
else:
    _Base = object

logger = logging.getLogger(__name__)

Answer = dict[str, Any]
RouteHandler = Callable[[Answer], Awaitable[Answer]]

SHUTTING_DOWN: Answer = {"status": "error", "message": "the worker is shutting down"}

TURN_S: Final = 30.0
"""Seconds that a control call waits for the one before it."""


class LoraLocks(weakref.WeakValueDictionary[str, asyncio.Lock]):
    """One lock for each adapter, for as long as anybody holds it or waits for it.

    The incumbent takes a lock out of its map while others still wait for it; the next caller then
    makes a second one, and two loads of an adapter run at once (defect B14).
    """

    def pop(self, *_args: Any) -> None:  # type: ignore[override]
        """Nothing: a lock goes when its last user does."""


class Busy(Exception):
    """Another control call is still running."""


class Turns:
    """One control call at a time, and no waiting for ever behind one that hangs (C43)."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """asyncio. Raises `Busy` after `TURN_S`."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._lock.acquire()
        except TimeoutError:
            raise Busy(f"another control call has been running for {TURN_S:g} s") from None
        try:
            yield
        finally:
            self._lock.release()


class _OwnedRoutes:
    """The runtime as the incumbent's handler registers engine routes on it."""

    def __init__(self, runtime: Any, calls: ControlCalls) -> None:
        self._runtime = runtime
        self._calls = calls

    def register_engine_route(self, path: str, handler: RouteHandler) -> None:
        """Trio. Each call of `handler` belongs to the engine."""

        async def owned(body: Answer) -> Answer:
            return await self._calls.run(lambda: handler(body))

        self._runtime.register_engine_route(path, owned)


class Control(_Base):  # type: ignore[misc]  # Dynamo has no types
    """Control endpoints, engine routes and discovery of an LLM handler."""

    _runtime: WorkerRuntime
    _calls: ControlCalls
    _turns: Turns
    discovery: DiscoveryFollower

    def attach(self, worker: Worker) -> None:
        """Trio. Before any endpoint is served."""
        self._runtime = worker.runtime
        self._calls = worker.engine.control_calls
        self._lora_load_locks = LoraLocks()
        self._turns = Turns()
        # Taken inside a turn by the incumbent's methods, and held across a yield (defect B15).
        self._engine_route_lock = nullcontext()
        self.discovery = DiscoveryFollower(self._sync_discovery_with_sglang_pause_state)
        worker.services.start_service(self.discovery.run)

    # ---- discovery ----

    async def _sync_discovery_with_sglang_pause_state(self) -> None:
        """asyncio. Advertised iff SGLang is not paused; never again once withdrawn (rule 123)."""
        manager = self.engine.tokenizer_manager
        # What is not served yet shows itself when it is.
        if hasattr(manager, "is_pause") and self._runtime.serves(self.generate_endpoint):
            await self._runtime.advertise(self.generate_endpoint, not manager.is_pause)

    def follow_shared_pause_state(self) -> None:
        """Trio. Follow pauses that other processes of this engine ask for, too.

        SGLang runs what is hooked in here in a task that nobody waits for (C47).
        """

        async def follow() -> None:
            self.discovery.poke()

        follow_pause_broadcasts(self.engine.tokenizer_manager, follow)

    # ---- engine routes ----

    def register_engine_routes(self, runtime: Any) -> None:
        """Trio. Raises ValueError for a configured route that can't be."""
        engine_routes._run_in_thread = run_in_thread
        super().register_engine_routes(_OwnedRoutes(runtime, self._calls))

    async def _invoke_engine_route(self, route_handler: RouteHandler, body: Answer) -> Answer:
        """asyncio. One call in its turn; discovery has followed when it is answered."""
        async with self._turns.turn():
            try:
                answer = await route_handler(body)
            except Exception:
                await self._follow()
                raise
            # Not if it was cancelled: the engine closes, and nothing is shown any more.
            await self._follow()
            return answer

    async def _follow(self) -> None:
        if not await self.discovery.wait_followed(self.discovery.poke()):
            logger.warning("A control call is answered before discovery has followed it")

    # ---- endpoints ----

    async def load_lora(self, request: Any = None) -> AsyncGenerator[Answer, None]:
        """asyncio. One answer; refused during a shutdown (rule 123)."""
        if self._runtime.registration_refused:
            yield SHUTTING_DOWN
        else:
            yield await self._answer(super().load_lora, request)

    async def unload_lora(self, request: Any = None) -> AsyncGenerator[Answer, None]:
        """asyncio. One answer."""
        yield await self._answer(super().unload_lora, request)

    async def clear_kv_blocks(self, request: Any = None) -> AsyncGenerator[Answer, None]:
        """asyncio. One answer."""

        async def clear() -> Answer:
            async with self._turns.turn():
                return await _only(super(Control, self).clear_kv_blocks(request))

        try:
            yield await self._calls.run(clear)
        except Busy as busy:
            yield {"status": "error", "message": str(busy)}

    async def _answer(
        self, endpoint: Callable[[Any], AsyncGenerator[Answer, None]], request: Any
    ) -> Answer:
        """asyncio. The one answer of an endpoint, whose work goes on if the caller leaves."""
        return await self._calls.run(lambda: _only(endpoint(request)))


async def _only(answers: AsyncGenerator[Answer, None]) -> Answer:
    """asyncio. The one answer of `answers`, run to its end.

    The incumbent yields it with a lock held: a consumer that goes away there would keep the lock
    until the garbage collector finds the generator (defect B15).
    """
    collected = [answer async for answer in answers]
    return collected[0]
