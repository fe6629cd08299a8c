# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""SGLang's engine seen from Trio: built off its thread, watched by pidfd, closed in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from compat.feeders import Feeder, Feeders
from compat.loop import WorkerLoop
from compat.permanent_thread import PermanentThread
from compat.processes import guarded, wait_process_exit
from compat.tap import Merge, TapMixin, tapped

logger = logging.getLogger(__name__)

SCHEDULER_EXIT_S = 15.0
"""Seconds from ShutdownReq until schedulers are killed (upstream _SCHEDULER_EXIT_TIMEOUT_SECS)."""

FEEDERS_CLOSE_S = 1.0
"""Seconds that closing the engine waits for feeders that resist."""


class SglangEngine:
    """One SGLang engine that belongs to this process."""

    def __init__(self, engine: Any, loop: WorkerLoop, thread: PermanentThread) -> None:
        self.engine = engine
        self.feeders = Feeders(loop)
        self.load_seconds = 0.0
        self.died = trio.Event()
        """Set when a child exited, or SGLang's receive loop failed, while we were not closing."""
        self.death = ""
        """Why the engine is dead, for the log."""
        self.closing = False
        self.closed = False
        self._loop = loop
        self._thread = thread

    @property
    def tokenizer_manager(self) -> Any:
        """SGLang's manager; None on a node that is not the leader."""
        return self.engine.tokenizer_manager

    @property
    def is_tapped(self) -> bool:
        """Whether outputs can leave SGLang through the tap."""
        return isinstance(self.tokenizer_manager, TapMixin)

    @property
    def child_pids(self) -> list[int]:
        """Schedulers and detokenizers."""
        return list(self.engine.get_all_child_pids())

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
        async with trio.open_nursery() as waiters:
            for pid in self.child_pids:
                waiters.start_soon(wait_process_exit, pid)

    async def close(self, seconds: float) -> None:
        """Trio. End feeders, let schedulers release their memory, then `engine.shutdown()`.

        `seconds` bounds all of it; raises `trio.TooSlowError` when it has passed. Idempotent.
        """
        if self.closed:
            return
        self.closing = True
        deadline = trio.current_time() + seconds
        await self.feeders.close(min(FEEDERS_CLOSE_S, seconds))
        with trio.fail_at(deadline):
            await self._ask_schedulers_to_exit(deadline)
            await self._thread.run(self.engine.shutdown)
        self.closed = True
        logger.info("Engine shutdown")

    async def _ask_schedulers_to_exit(self, deadline: float) -> None:
        manager = self.tokenizer_manager
        pids = self.child_pids
        if manager is None or self.died.is_set() or not hasattr(manager, "_dispatch_to_scheduler"):
            return
        from sglang.srt.managers.io_struct import ShutdownReq

        manager._dispatch_to_scheduler(ShutdownReq())
        schedulers = pids[: len(pids) - 1] or pids
        # Half of what is left is kept for killing and reaping.
        patience = min(SCHEDULER_EXIT_S, (deadline - trio.current_time()) / 2)
        with trio.move_on_after(patience):
            async with trio.open_nursery() as waiters:
                for pid in schedulers:
                    waiters.start_soon(wait_process_exit, pid)

    async def stop_manager_tasks(self, seconds: float) -> None:
        """Trio. End SGLang's own asyncio tasks; its watchdog would ``sys.exit`` (phase 6)."""
        manager = self.tokenizer_manager
        tasks: set[asyncio.Task[Any]] = set(getattr(manager, "asyncio_tasks", ()))
        for task in tasks:
            task.cancel()
        with trio.move_on_after(seconds):
            for task in tasks:
                await Feeder(task).wait_ended()


def prepare_engine_class(*, merge: Merge, merge_at: int, tap: bool) -> None:
    """Before an engine is built: the tap, and children that leave when their parent is gone.

    Imports SGLang; call it outside of Trio.
    """
    from sglang.srt.entrypoints import engine as upstream
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    engine_class = upstream.Engine
    engine_class.run_scheduler_process_func = staticmethod(
        guarded(engine_class.run_scheduler_process_func)
    )
    engine_class.run_detokenizer_process_func = staticmethod(
        guarded(engine_class.run_detokenizer_process_func)
    )
    if not tap:
        logger.info("The tap is off: outputs take SGLang's own path")
        return
    if not hasattr(engine_class, "init_tokenizer_manager_func"):
        logger.warning("This SGLang has no place for the tap: outputs take SGLang's own path")
        return
    manager_class = tapped(TokenizerManager, merge=merge, merge_at=merge_at)

    def init_tapped_manager(server_args: Any, port_args: Any) -> Any:
        return upstream.init_tokenizer_manager(server_args, port_args, manager_class)

    engine_class.init_tokenizer_manager_func = staticmethod(init_tapped_manager)


@asynccontextmanager
async def open_engine(loop: WorkerLoop, build: Callable[[], Any]) -> AsyncIterator[SglangEngine]:
    """Trio. Build an engine off the Trio thread, so that the loop answers during a long load.

    `build` is called in a thread that lives as long as the process; it returns an ``sgl.Engine``.
    Leaving while it loads leaves at once: whoever leaves kills the children. Raises what the
    constructor raises.
    """
    thread = PermanentThread("sglang-engine")
    started = time.monotonic()
    engine = await thread.run(lambda: _build_with_private_loop(build))
    host = SglangEngine(engine, loop, thread)
    host.load_seconds = time.monotonic() - started
    await _adopt(host, loop, thread)
    try:
        yield host
    finally:
        if not host.closed:
            with trio.CancelScope(shield=True), trio.move_on_after(SCHEDULER_EXIT_S):
                await host.close(SCHEDULER_EXIT_S)


def _build_with_private_loop(build: Callable[[], Any]) -> Any:
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


async def _adopt(host: SglangEngine, loop: WorkerLoop, thread: PermanentThread) -> None:
    """Trio. Point a fresh engine at the bridge's loop and take over its supervision."""
    host.engine.loop = loop
    manager = host.tokenizer_manager
    if manager is None:
        return
    watchdog = getattr(manager, "_subprocess_watchdog", None)
    if watchdog is not None:
        # Its answer to a dead child is SIGQUIT, a blocking dump and SIGKILL of this process.
        await thread.run(watchdog.stop)
    if isinstance(manager, TapMixin):
        manager.on_receive_loop_error = lambda error: host.fail(f"receive loop: {error!r}")
    if hasattr(manager, "auto_create_handle_loop"):
        # Started here, it inherits our context and not the empty one of the first request.
        loop.base_context.run(manager.auto_create_handle_loop)
