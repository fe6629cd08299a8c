# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The requests of one worker: admission, the walk on shutdown, waiting for idle."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import trio

from compat.egress import Egress
from compat.feeders import Feeders
from compat.handover import Handover
from compat.loop import WorkerLoop
from compat.tap import Flight
from trio_worker.recorder import Note, Recorder, events
from trio_worker.requests.abort import Aborts
from trio_worker.requests.outcome import engine_shutdown
from trio_worker.requests.plan import Plan
from trio_worker.requests.request import Context, Request


class LiveRequests:
    """Every request between admission and outcome. Lives on the Trio thread only."""

    def __init__(
        self,
        *,
        loop: WorkerLoop,
        serving: trio.Nursery,
        feeders: Feeders,
        aborts: Aborts,
        tokenizer_manager: Any,
        recorder: Recorder | None = None,
    ) -> None:
        self.loop = loop
        self.feeders = feeders
        self.aborts = aborts
        self.recorder = Recorder(0) if recorder is None else recorder
        self._serving = serving
        self._manager = tokenizer_manager
        self._flights: dict[str, Flight] = getattr(tokenizer_manager, "flights", {})
        self._live: set[Request] = set()
        self._idle_since: float | None = trio.current_time()
        self._changed = trio.Event()
        self.migrating = False
        """From the migrate phase on: new requests are told to go elsewhere (rule 124)."""
        self.admitted = 0
        self.migrated = 0
        """Requests that ended with ``EngineShutdown``, which the frontend migrates."""
        self.refused = 0
        self.drains_ended = 0
        """Drains that found the end of their stream in time."""
        self.drains_timed_out = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._live))

    @property
    def count(self) -> int:
        """Requests between admission and outcome."""
        return len(self._live)

    # ---- admission: asyncio ----

    def admit(
        self,
        context: Context,
        egress: Egress,
        planning: Callable[[], Coroutine[Any, Any, Plan]],
    ) -> Request:
        """asyncio. Start one request; raises ``EngineShutdown`` once the worker migrates.

        A serving nursery that was cancelled means the same (rule 111).
        """
        if self.migrating or self._serving.cancel_scope.cancel_called:
            self.refused += 1
            self.recorder.lane()(events.REFUSED, context.id())
            raise engine_shutdown()
        request = Request(self, context, egress, planning)
        self._live.add(request)
        self._idle_since = None
        self.admitted += 1
        # Calls from Rust come in an empty context, where the bridge's helpers find no loop.
        self.loop.base_context.run(self._serving.start_soon, request.run)
        return request

    def landed(self, request: Request) -> None:
        """Trio. A request has put its outcome."""
        self._live.discard(request)
        if not self._live:
            self._idle_since = trio.current_time()
            self._changed.set()
            self._changed = trio.Event()

    # ---- what the engine's side knows of each rid ----

    def take_off(self, rid: str, handover: Handover | None, note: Note) -> Flight:
        """asyncio. From here on the tap tells us of `rid`."""
        flight = Flight(rid, handover, note)
        self._flights[rid] = flight
        return flight

    def land(self, flight: Flight) -> None:
        """Trio. The request of `flight` is over."""
        flight.handover = None
        if self._flights.get(flight.rid) is flight:
            del self._flights[flight.rid]

    def clear_leftovers(self, plan: Plan) -> None:
        """Trio. Remove undispatched child states that SGLang leaves behind (rule 118).

        SGLang 0.5.21 registers ``rid_<i>`` for each sample, regenerates the rids it submits, and
        deletes only the first.
        """
        if plan.choices < 2:
            return
        registry = self.aborts.registry
        if not isinstance(registry, dict):
            return
        for index in range(plan.choices):
            rid = f"{plan.engine_rid}_{index}"
            state = registry.get(rid)
            if state is not None and not getattr(state, "dispatched", True):
                del registry[rid]

    # ---- shutdown: Trio ----

    def migrate_all(self) -> None:
        """Trio. Refuse new requests and tell the live ones to move (rules 95, 124)."""
        self.migrating = True
        for request in self:
            request.stop_for_shutdown()

    async def wait_idle(self, quiet: float) -> None:
        """Trio. Until there has been no request for `quiet` seconds (rule 127)."""
        while True:
            if self._idle_since is None:
                await self._changed.wait()
                continue
            remaining = self._idle_since + quiet - trio.current_time()
            if remaining <= 0:
                return
            await trio.sleep(remaining)

    async def join(self) -> None:
        """Trio. Until nothing runs in the serving nursery any more."""
        await self.wait_all_ended()

    async def wait_all_ended(self) -> None:
        """Trio. Until no request is left."""
        while self._live:
            await self._changed.wait()
