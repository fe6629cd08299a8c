# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A worker that is frozen before its first connection, and thawed elsewhere (R15).

The engine is built, warmed up and paused; then the process waits, to be captured by CRIU, for a
file that says which of the two it is: the original, which leaves with status 0, or the restored
one, which connects and serves.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import sglang as sgl
import trio
from dynamo.common.snapshot import constants as files
from dynamo.common.snapshot.lifecycle import configure_snapshot_capture_env, elect_and_wake
from dynamo.common.snapshot.restore_context import (
    parse_snapshot_restore_runtime_config,
    refresh_snapshot_restore_config,
)
from dynamo.sglang._compat import override_server_args
from dynamo.sglang.snapshot import _SGLangSnapshotLifecycle as PauseController
from dynamo.sglang.snapshot import warmup_engine

from compat.engine import SglangEngine, open_engine
from compat.futures import settle, within
from compat.loop import WorkerLoop
from compat.processes import is_alive
from compat.runtime import WorkerRuntime
from compat.runtime_errors import RuntimeTooSlow
from trio_worker.cli import split_args
from trio_worker.errors import BadArguments
from trio_worker.roles import Role
from trio_worker.roles.llm import llm_role
from trio_worker.shutdown import Shutdown, StopReason
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S: Final = 0.1
"""Seconds between two looks for the file that ends the wait; a capture takes seconds."""

WARM_UP_S: Final = 600.0
WARM_UP_DISAGGREGATED_S: Final = 1800.0
"""Upstream's bounds, unless ``SGLANG_WARMUP_TIMEOUT`` sets one."""

MARGIN_S: Final = 5.0
"""What we give the warm-up, and each step of pausing, beyond that before we go without them."""

TIDY_S: Final = 1.0


class SnapshotRole(Role):
    """R15: decode or prefill, frozen first."""

    def __init__(self) -> None:
        self._engine: SglangEngine
        self._pausing: PauseController
        self._released_tags: list[str] | None
        self._lock: Any = None
        """Held by its descriptor for as long as the process lives."""

    def prepare(self, config: Any) -> None:
        """Neither flavour. What the image must not hold. Raises `BadArguments`."""
        super().prepare(config)
        if config.dynamo_args.diffusion_worker or config.server_args.node_rank:
            raise BadArguments(
                f"snapshot mode ({files.SNAPSHOT_CONTROL_DIR_ENV} is set) is for decode and "
                "prefill workers on one node"
            )
        configure_snapshot_capture_env()
        logger.info("Snapshot mode enabled (watcher-driven signals)")
        overrides, self._released_tags = _memory_plan()
        override_server_args(config.server_args, "dynamo.snapshot", **overrides)

    @asynccontextmanager
    async def open_early(
        self, loop: WorkerLoop, config: Any, shutdown: Shutdown
    ) -> AsyncIterator[None]:
        """Trio. An engine that is paused, in the process that has been restored.

        The original does not come back from here: it asks for its end. Raises what keeps the
        engine from starting, `RuntimeTooSlow` for a warm-up or a pause that does not end.
        """
        async with open_engine(
            loop, lambda: sgl.Engine(server_args=config.server_args)
        ) as self._engine:
            seconds = self._engine.load_seconds
            logger.info("SGLang engine loaded in %.2fs (snapshot mode)", seconds)
            await self._freeze(config)
            folder = Path(os.environ[files.SNAPSHOT_CONTROL_DIR_ENV])
            if not await wait_for_restore(folder, self._check_alive):
                shutdown.request(StopReason.SNAPSHOT_TAKEN)
                await trio.sleep_forever()
            await _refresh(config.dynamo_args)
            yield

    async def _freeze(self, config: Any) -> None:
        engine = self._engine.engine
        config.validate_engine_server_args(engine.server_args)
        resolved = self._engine.resolved_server_args
        bound = warm_up_bound(config.server_args)
        await _bounded(lambda: warmup_engine(engine, resolved), bound + MARGIN_S, "warm-up")
        gc.collect()
        self._pausing = PauseController(engine, self._released_tags)
        logger.info("Pausing model")
        await _bounded(self._pausing.pause, bound, "pausing")

    def _check_alive(self) -> None:
        """Trio. Raises RuntimeError when a process of the engine is gone: nothing to capture then.

        Not by process file descriptor: CRIU learnt of those late.
        """
        for pid in self._engine.child_pids:
            if not is_alive(pid):
                raise RuntimeError(f"child process {pid} exited while the worker was frozen")

    @asynccontextmanager
    async def _woken(self, runtime: WorkerRuntime) -> AsyncIterator[SglangEngine]:
        # One engine of a failover group wakes; the others stay here, healthy, for as long as it
        # takes. What they would wake must not die unseen.
        async with trio.open_nursery() as watchers:
            watchers.start_soon(self._raise_if_dead)
            self._lock = await settle(elect_and_wake(self._pausing, runtime.runtime))
            watchers.cancel_scope.cancel()
        # The load happened elsewhere; upstream tells 0 as well.
        self._engine.load_seconds = 0.0
        yield self._engine

    async def _raise_if_dead(self) -> None:
        await self._engine.watch_children()
        raise RuntimeError(f"the engine died before it was woken: {self._engine.death}")

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[SglangEngine]:
        """Trio. The engine, awake."""
        return self._woken(runtime)

    async def serve(self, worker: Worker) -> None:
        """Trio. As the role that the flags select."""
        await llm_role(worker.config).serve(worker)


def _memory_plan() -> tuple[dict[str, Any], list[str] | None]:
    """SGLang arguments for an engine that is captured, and which memory it lets go of (None: all).

    Weights stay on the GPU, where a snapshot finds them, unless GPU memory service restores them
    from elsewhere; its newer version needs no memory saver for that.
    """
    # An engine older than its endpoint can't be told the endpoint's name.
    overrides: dict[str, Any] = {"enable_forward_pass_metrics": False}
    if os.environ.get("DYN_GMS_USE_V1") == "true":
        return overrides, None
    overrides["enable_memory_saver"] = True
    return overrides, None if _gms_is_active() else ["kv_cache"]


def _gms_is_active() -> bool:
    try:
        from gpu_memory_service.integrations.sglang import is_gms_active
    except ImportError:
        return False
    return bool(is_gms_active())


def warm_up_bound(server_args: Any) -> float:
    """Seconds; upstream's own bound."""
    from sglang.srt.environ import envs

    wanted = float(envs.SGLANG_WARMUP_TIMEOUT.get())
    if wanted > 0:
        return wanted
    disaggregated = server_args.disaggregation_mode != "null"
    return WARM_UP_DISAGGREGATED_S if disaggregated else WARM_UP_S


async def _bounded(call: Callable[[], Awaitable[object]], seconds: float, what: str) -> None:
    """Trio. Raises `RuntimeTooSlow`, also for what only ends with it (C63)."""
    try:
        await within(seconds, call, f"snapshot {what}")
    except TimeoutError:
        raise RuntimeTooSlow(f"snapshot {what}: no answer for {seconds:g} s") from None


async def wait_for_restore(folder: Path, check: Callable[[], None]) -> bool:
    """Trio. Say that we may be captured, then wait: True in the restored process.

    Everything that touches `folder`, a volume of the pod, is done off the loop, and can be left.
    `check` is called again and again, and may raise.
    """
    ready = folder / files.READY_FOR_SNAPSHOT_FILE
    try:
        await _off_loop(lambda: ready.write_text("ready"))
        logger.info(
            "Ready for snapshot. Polling for sentinel in %s "
            "(snapshot-complete or restore-complete)",
            folder,
        )
        while (found := await _off_loop(lambda: _sentinel(folder))) is None:  # files tell nobody
            check()
            await trio.sleep(POLL_S)
    finally:
        with trio.move_on_after(TIDY_S, shield=True):
            await _off_loop(lambda: _tidy(folder))
    if found == files.SNAPSHOT_COMPLETE_FILE:
        logger.info("Snapshot completion sentinel detected")
        return False
    logger.info("Restore sentinel detected; returning application-paused")
    # Set for the capture alone.
    os.environ.pop("HF_HUB_OFFLINE", None)
    return True


async def _off_loop(job: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(job, abandon_on_cancel=True)


def _sentinel(folder: Path) -> str | None:
    for name in (files.SNAPSHOT_COMPLETE_FILE, files.RESTORE_COMPLETE_FILE):
        if (folder / name).exists():
            return str(name)
    return None


def _tidy(folder: Path) -> None:
    """The restore's own file stays for the pod's startup probe."""
    for name in (files.READY_FOR_SNAPSHOT_FILE, files.SNAPSHOT_COMPLETE_FILE):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError:
            logger.exception("Failed to clean up %s in %s", name, folder)


async def _refresh(dynamo_args: Any) -> None:
    """Trio. Namespace, discovery and planes as the new pod has them."""
    _ours, theirs = split_args(sys.argv[1:])
    refreshing = refresh_snapshot_restore_config(
        dynamo_args, lambda: parse_snapshot_restore_runtime_config(theirs)
    )
    await settle(refreshing)
