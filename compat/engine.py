# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""SGLang's engine seen from Trio: the tap, its receive loop, schedulers that end in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from compat.host import EngineHost, all_exited, open_host
from compat.loop import WorkerLoop
from compat.permanent_thread import PermanentThread
from compat.processes import guarded, wait_process_exit
from compat.signals import unblocked_signals
from compat.tap import Merge, TapMixin, tapped

logger = logging.getLogger(__name__)

SCHEDULER_EXIT_S = 15.0
"""Seconds from ShutdownReq until schedulers are killed (upstream _SCHEDULER_EXIT_TIMEOUT_SECS)."""


class SglangEngine(EngineHost):
    """One ``sgl.Engine``."""

    @property
    def tokenizer_manager(self) -> Any:
        """SGLang's manager; None on a node that is not the leader."""
        return self.engine.tokenizer_manager

    @property
    def child_pids(self) -> list[int]:
        """Schedulers and detokenizers."""
        return list(self.engine.get_all_child_pids())

    @property
    def resolved_server_args(self) -> Any:
        """The engine's own."""
        return self.engine.server_args

    async def adopt(self) -> None:
        """Trio. Point a fresh engine at the bridge's loop and take over its supervision."""
        self.engine.loop = self._loop
        manager = self.tokenizer_manager
        if manager is None:
            return
        watchdog = getattr(manager, "_subprocess_watchdog", None)
        if watchdog is not None:
            # Its answer to a dead child is SIGQUIT, a blocking dump and SIGKILL of this process.
            await self._thread.run(watchdog.stop)
        if isinstance(manager, TapMixin):
            manager.on_receive_loop_error = lambda error: self.fail(f"receive loop: {error!r}")
        if hasattr(manager, "auto_create_handle_loop"):
            # Started here, it inherits our context and not the empty one of the first request.
            self._loop.base_context.run(manager.auto_create_handle_loop)

    async def end(self, deadline: float) -> None:
        """Trio. Let schedulers release their memory, then `engine.shutdown()`."""
        await self._ask_schedulers_to_exit(deadline)
        await self._thread.run(self.engine.shutdown)

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
            await all_exited(schedulers)


def prepare_engine_class(*, merge: Merge, merge_at: int, tap: bool) -> None:
    """Before an engine is built: the tap, and children that leave when their parent is gone.

    Imports SGLang; call it outside of Trio.
    """
    from sglang.srt.entrypoints import engine as upstream
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.server_args import ServerArgs

    engine_class = upstream.Engine
    _guard_children(upstream)
    if not tap:
        logger.info("The tap is off: outputs take SGLang's own path")
        return
    if not hasattr(engine_class, "init_tokenizer_manager_func"):
        logger.warning("This SGLang has no place for the tap: outputs take SGLang's own path")
        return
    weight_version = _short_way_to_weight_version(ServerArgs)

    def with_tap(base: type) -> type:
        return tapped(base, merge=merge, merge_at=merge_at, weight_version=weight_version)

    manager_class = with_tap(TokenizerManager)

    def init_tapped_manager(server_args: Any, port_args: Any) -> Any:
        return upstream.init_tokenizer_manager(server_args, port_args, manager_class)

    engine_class.init_tokenizer_manager_func = staticmethod(init_tapped_manager)

    worker_class_of = getattr(ServerArgs, "get_tokenizer_worker_class", None)
    if worker_class_of is not None:

        def tapped_worker_class_of(server_args: Any) -> type:
            return with_tap(worker_class_of(server_args))

        # What a gateway's child makes in place of a manager.
        ServerArgs.get_tokenizer_worker_class = tapped_worker_class_of


def _short_way_to_weight_version(server_args_class: type) -> Callable[[], Any] | None:
    """A tenth of what the look-up by name costs, wherever SGLang keeps the field there."""
    try:
        from sglang.srt.arg_groups.arg_utils import namespace_of
        from sglang.srt.runtime_context import get_serving
    except ImportError:
        return None
    if namespace_of(server_args_class).get("weight_version") != "serving":
        return None
    return lambda: get_serving().weight_version


def _guard_children(upstream: Any) -> None:
    """No child outlives us, and those that act on SIGTERM hear it."""
    engine_class = upstream.Engine
    for name in ("run_scheduler_process_func", "run_detokenizer_process_func"):
        setattr(engine_class, name, staticmethod(guarded(getattr(engine_class, name))))
    # Only with data parallelism or several tokenizers: taken from the module by name.
    for name in ("run_data_parallel_controller_process", "run_multi_detokenizer_router_process"):
        if hasattr(upstream, name):
            setattr(upstream, name, guarded(getattr(upstream, name)))
    launch = getattr(engine_class, "_launch_weight_cache_daemons", None)
    if launch is not None:

        def launch_weight_cache_daemons(_class: type, server_args: Any) -> Any:
            with unblocked_signals():
                return launch(server_args)

        engine_class._launch_weight_cache_daemons = classmethod(launch_weight_cache_daemons)


class FollowingEngine(SglangEngine):
    """The engine of a node that does not lead: schedulers only, which leave when rank 0 does."""

    def __init__(self, engine: Any, loop: WorkerLoop, thread: PermanentThread) -> None:
        super().__init__(engine, loop, thread)
        self.group_ended = trio.Event()
        """Set when all schedulers have exited, none of them with a failure."""

    async def watch_children(self) -> None:
        """Trio. A service: until all have exited, or the engine has failed.

        One that fails, or is alone in leaving, has not been told by rank 0.
        """
        # Of a grandchild, whose parent is SGLang's controller, the status is not known here: None.
        exited: dict[int, int | None] = {}
        pids = self.child_pids

        async def watch(pid: int) -> None:
            exited[pid] = status = await wait_process_exit(pid)
            patience = 0.0 if status else SCHEDULER_EXIT_S
            scope = watchers.cancel_scope
            scope.deadline = min(scope.deadline, trio.current_time() + patience)

        async with trio.open_nursery() as watchers:
            for pid in pids:
                watchers.start_soon(watch, pid)
        if len(exited) == len(pids) and not any(exited.values()):
            self.group_ended.set()
            return
        pid = next((pid for pid in exited if exited[pid]), next(iter(exited)))
        self.fail(f"child process {pid} exited with status {exited[pid]}")


def open_engine(
    loop: WorkerLoop, build: Callable[[], Any]
) -> AbstractAsyncContextManager[SglangEngine]:
    """Trio. `build` returns an ``sgl.Engine`` (see `open_host`)."""
    return open_host(SglangEngine, loop, build)
