# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One engine, several processes that serve it (R13, R14).

The leader owns the engine and starts the children; each joins the engine with a tokenizer worker
of SGLang's, and is else a worker like any other, with an instance of its own in discovery.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from multiprocessing import resource_tracker
from typing import Any, Final

import sglang as sgl
import trio
from dynamo.sglang import gateway as upstream

from compat.engine import SglangEngine
from compat.host import open_host
from compat.loop import WorkerLoop
from compat.processes import wait_process_exit
from compat.runtime import WorkerRuntime
from compat.signals import SAME_REQUEST_SECONDS
from trio_worker.children import Child, Children
from trio_worker.cli import with_shutdown_timeout
from trio_worker.errors import FAILED, StartupExit
from trio_worker.roles import Role
from trio_worker.roles.llm import llm_role, open_sglang
from trio_worker.shutdown import Shutdown, StopReason
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)

PROGRAM: Final = (sys.executable, "-m", "trio_worker")
"""What a child runs."""

_PR_SET_PDEATHSIG: Final = 1


class GatewayLeaderRole(Role):
    """R13: no requests; schedulers, SGLang's router, and the children."""

    def prepare(self, config: Any) -> None:
        """Neither flavour. The status server's port goes to child 0."""
        super().prepare(config)
        upstream.reserve_system_port_for_children()

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[SglangEngine]:
        """Trio. ``sgl.Engine``, which makes a router of its own accord."""
        return open_sglang(loop, config, runtime)

    async def serve(self, worker: Worker) -> None:
        """Trio. Start the children, one task each."""
        # The last chance to be stopped: from here to the end, all are started or none.
        await trio.lowlevel.checkpoint()
        count = upstream.gateway_worker_count(worker.config.server_args, worker.config.dynamo_args)
        total = worker.shutdown.bounds.of_children()
        command = [*PROGRAM, *with_shutdown_timeout(sys.argv[1:], total)]
        children = worker.shutdown.parts.children = Children()
        worker.services.start_service(_remove_metrics_socket)
        for index in range(count):
            environment = upstream.child_environment(index, worker.engine.load_seconds)
            child = children.start(command, environment)
            worker.serving.start_service(_look_after, worker.shutdown, children, child)
        logger.info(
            "gateway parent pid=%d spawned %d children: %s", os.getpid(), count, children.pids
        )


async def _look_after(shutdown: Shutdown, children: Children, child: Child) -> None:
    """Trio. One child, from its start to its end."""
    status = await children.look_after(child)
    if status == 0:
        # A signal to the whole process group may end an idle child before it has reached us.
        with trio.move_on_after(SAME_REQUEST_SECONDS):
            await shutdown.requested.wait()
    if not shutdown.requested.is_set():
        shutdown.request(StopReason.CHILD_DIED, f"gateway child pid={child.pid} exited rc={status}")


async def _remove_metrics_socket() -> None:
    """Trio. A service: at its end, the file of the socket on which child 0 tells its siblings."""
    try:
        await trio.sleep_forever()
    finally:
        with suppress(FileNotFoundError):
            os.unlink(f"{tempfile.gettempdir()}/dynamo_sglang_gateway_metrics_{os.getpid()}")


class AttachedEngine(SglangEngine):
    """An engine that this process has joined; it belongs to the gateway's leader."""

    async def adopt(self) -> None:
        """Trio. Take the engine over; who loads it has told child 0 how long that took."""
        await super().adopt()
        self.load_seconds = upstream.attached_engine_load_time()

    async def watch_children(self) -> None:
        """Trio. A service: until the leader is gone, and the engine with it."""
        leader = leader_pid()
        if os.getppid() == leader:
            await wait_process_exit(leader)
        self.fail(f"the gateway's leader is gone (pid={leader})")

    async def end(self, deadline: float) -> None:
        """Trio. Leave the engine; the schedulers go on for the siblings."""
        await self._thread.run(self.engine.shutdown)


class GatewayChildRole(Role):
    """R14: decode or prefill on the leader's engine."""

    def __init__(self) -> None:
        self._engine: AttachedEngine

    def prepare(self, config: Any) -> None:
        """Neither flavour. Die with the leader. Raises `StartupExit` if it is gone already.

        SIGTERM, as upstream: until Trio runs, it ends the process at once. The ports are the
        leader's, so none is checked.
        """
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != leader_pid():
            raise StartupExit(FAILED, f"the gateway's leader is gone (pid={leader_pid()})")

    @asynccontextmanager
    async def open_early(
        self, loop: WorkerLoop, config: Any, shutdown: Shutdown
    ) -> AsyncIterator[None]:
        """Trio. Join the leader's engine, before the runtime as upstream does."""
        async with open_host(AttachedEngine, loop, _attach) as self._engine:
            yield

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[AttachedEngine]:
        """Trio. What has been joined."""
        return nullcontext(self._engine)

    async def serve(self, worker: Worker) -> None:
        """Trio. As the role that the flags select."""
        await llm_role(worker.config).serve(worker)


def leader_pid() -> int:
    """Of the gateway whose child this is."""
    return int(os.environ[upstream.ENV_PARENT_PID])


def _attach() -> Any:
    """In the engine's thread."""
    if not hasattr(sgl.Engine, "attach_tokenizer_worker"):
        raise RuntimeError("this SGLang lets no process join an engine: gateway mode needs 0.5.21")
    leader = leader_pid()
    engine = sgl.Engine.attach_tokenizer_worker(leader)
    # Who attaches to shared memory is taken for an owner of it (CPython issue 82300): the tracker
    # of the first child to leave would remove it for all.
    resource_tracker.unregister(f"/multi_tokenizer_args_{leader}", "shared_memory")
    logger.info("gateway child pid=%d attached via Engine.attach_tokenizer_worker", os.getpid())
    return engine
