# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What is the same for every engine of this process: built off the loop, watched, closed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from compat.control_calls import ControlCalls
from compat.feeders import Feeder, Feeders
from compat.loop import WorkerLoop
from compat.permanent_thread import PermanentThread
from compat.processes import wait_process_exit
from compat.tap import TapMixin

logger = logging.getLogger(__name__)

FEEDERS_CLOSE_S = 1.0
"""Seconds that closing an engine waits for feeders that resist."""

CLOSE_S = 15.0
"""Seconds that leaving the block waits for an engine that the plan has not closed."""


class EngineHost:
    """One engine that belongs to this process. Lives on the Trio thread only."""

    def __init__(self, engine: Any, loop: WorkerLoop, thread: PermanentThread) -> None:
        self.engine = engine
        self.feeders = Feeders(loop)
        self.control_calls = ControlCalls(Feeders(loop))
        self.load_seconds: float | None = 0.0
        """What building it took; None: somebody else has built it, and tells."""
        self.died = trio.Event()
        """Set when a child exited, or what hears from it failed, while we were not closing."""
        self.death = ""
        """Why the engine is dead, for the log."""
        self.closing = False
        self.closed = False
        self._loop = loop
        self._thread = thread

    # ---- what differs ----

    @property
    def child_pids(self) -> list[int]:
        """Processes without which the engine can't work."""
        raise NotImplementedError

    @property
    def tokenizer_manager(self) -> Any:
        """SGLang's manager; None where there is none (a node that does not lead, a generator)."""
        return None

    @property
    def resolved_server_args(self) -> Any:
        """What SGLang made of ``Config.server_args``; None: nothing, they stay."""
        return None

    def statistics(self) -> dict[str, int]:
        """Figures of this kind of engine, for whoever looks inside; none for most."""
        return {}

    async def adopt(self) -> None:
        """Trio. The engine has just been built: take over what it would do by itself."""

    async def end(self, deadline: float) -> None:
        """Trio. Let children release what they hold, then see that they are gone.

        Cancelled at `deadline` (Trio's clock).
        """
        raise NotImplementedError

    # ---- what does not ----

    @property
    def is_tapped(self) -> bool:
        """Whether outputs can leave SGLang through the tap."""
        return isinstance(self.tokenizer_manager, TapMixin)

    def fail(self, why: str) -> None:
        """Trio or asyncio. The engine is dead, unless we are closing it ourselves."""
        if self.closing or self.died.is_set():
            return
        self.death = why
        logger.error("SGLang engine failed: %s", why)
        self.died.set()

    async def watch_children(self) -> None:
        """Trio. A service: report the first child that exits, with any code."""
        async with trio.open_nursery() as watchers:
            for pid in self.child_pids:
                watchers.start_soon(self._watch_child, pid)

    async def _watch_child(self, pid: int) -> None:
        status = await wait_process_exit(pid)
        self.fail(f"child process {pid} exited with status {status}")

    async def wait_exited(self) -> None:
        """Trio. Until every child of the engine has exited by itself."""
        await all_exited(self.child_pids)

    async def close(self, seconds: float) -> None:
        """Trio. End feeders, then the engine and its children.

        `seconds` bounds all of it; raises `trio.TooSlowError` when it has passed. Idempotent.
        """
        if self.closed:
            return
        self.closing = True
        deadline = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.feeders.close, min(FEEDERS_CLOSE_S, seconds))
            nursery.start_soon(self.control_calls.close, min(FEEDERS_CLOSE_S, seconds))
        with trio.fail_at(deadline):
            await self.end(deadline)
        self.closed = True
        logger.info("Engine shutdown")

    async def stop_manager_tasks(self, seconds: float) -> None:
        """Trio. End SGLang's own asyncio tasks; its watchdog would ``sys.exit`` (phase 6)."""
        tasks: set[asyncio.Task[Any]] = set(getattr(self.tokenizer_manager, "asyncio_tasks", ()))
        for task in tasks:
            task.cancel()
        with trio.move_on_after(seconds):
            for task in tasks:
                await Feeder(task).wait_ended()


Host = TypeVar("Host", bound=EngineHost)


@asynccontextmanager
async def open_host(
    host_class: type[Host], loop: WorkerLoop, build: Callable[[], Any]
) -> AsyncIterator[Host]:
    """Trio. Build an engine off the Trio thread, so that the loop answers during a long load.

    `build` is called in a thread that lives as long as the process, since children die with the
    thread that started them. Leaving while it loads, or cancelled, leaves at once: whoever leaves
    kills the children. Raises what `build` raises.
    """
    thread = PermanentThread("sglang-engine")
    started = time.monotonic()
    host = host_class(await thread.run(lambda: _with_private_loop(build)), loop, thread)
    host.load_seconds = time.monotonic() - started
    await host.adopt()
    try:
        yield host
    finally:
        if not host.closed and trio.current_effective_deadline() > -math.inf:
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_S):
                await host.close(CLOSE_S)


def _with_private_loop(build: Callable[[], Any]) -> Any:
    """In the permanent thread. SGLang wants a current loop while it is built."""
    # trio-asyncio keeps policies per thread; without one here it would offer its own loops.
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    private_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(private_loop)
    try:
        return build()
    finally:
        asyncio.set_event_loop(None)
        private_loop.close()


async def all_exited(pids: list[int]) -> None:
    """Trio. Until every one of `pids` has exited."""
    async with trio.open_nursery() as waiters:
        for pid in pids:
            waiters.start_soon(wait_process_exit, pid)
