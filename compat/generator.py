# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""SGLang's ``DiffGenerator`` seen from Trio: one generation at a time, in a thread of its own.

A generation can't be interrupted: its request leaves, the generation stays here, counted, at most
one, and the next one begins when its *thread* has ended (C50, C51; defects B17, B18).
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from compat.host import EngineHost, all_exited, open_host
from compat.loop import WorkerLoop
from compat.permanent_thread import PermanentThread
from compat.processes import guarded, kill_descendants
from compat.side_loop import SideLoop

logger = logging.getLogger(__name__)

AT_WORK = 8
"""Requests that fetch, wait for their turn, generate or encode at the same time."""


class GeneratorHost(EngineHost):
    """One ``DiffGenerator``: a client in this process, its workers below it."""

    def __init__(self, engine: Any, loop: WorkerLoop, thread: PermanentThread) -> None:
        super().__init__(engine, loop, thread)
        self.side = SideLoop("media", threads=2 * AT_WORK)
        """Where requests are prepared and encoded."""
        self.generated = 0
        """Generations that have ended, however they did."""
        self.left = 0
        """Generations whose request was over before them."""
        self._generating = False
        self._children: list[int] = []

    @property
    def child_pids(self) -> list[int]:
        """One worker for each GPU."""
        return self._children

    def statistics(self) -> dict[str, int]:
        """Generations that are under way, have ended, went on without their request."""
        return {
            "generating": int(self._generating),
            "generated": self.generated,
            "left": self.left,
        }

    @property
    def generating(self) -> bool:
        """Whether a generation is under way."""
        return self._generating

    async def adopt(self) -> None:
        """Trio. Know the workers: SGLang forgets them in its shutdown."""
        self._children = [process.pid for process in self.engine.local_scheduler_process or ()]

    def submit(self, arguments: Mapping[str, Any]) -> Future[Any]:
        """Any thread. ``DiffGenerator.generate`` in its turn; cancelled before, it never runs."""
        return self._thread.submit(functools.partial(self._generate, arguments))

    def _generate(self, arguments: Mapping[str, Any]) -> Any:
        self._generating = True
        try:
            return self.engine.generate(**arguments)
        finally:
            self._generating = False
            self.generated += 1

    async def end(self, deadline: float) -> None:
        """Trio. SGLang's own shutdown; SIGKILL where it can't be had, or takes too long."""
        self.side.close()
        if self._generating:
            # Its workers would answer after that, and its thread is not free.
            logger.warning("A generation is under way and can't be interrupted: killing it")
        elif not self.died.is_set() and await self._shut_down(deadline):
            return
        # In a pool thread, for it looks again until none is left.
        await trio.to_thread.run_sync(kill_descendants, abandon_on_cancel=True)
        await all_exited(self._children)

    async def _shut_down(self, deadline: float) -> bool:
        # Half of what is left is kept for killing.
        with trio.move_on_after((deadline - trio.current_time()) / 2):
            try:
                await self._thread.run(self.engine.shutdown)
            except Exception:
                logger.exception("The generator's shutdown failed")
            else:
                return True
        return False


class Turn:
    """The generator as one request's handler sees it: ``generate`` waits for its turn."""

    def __init__(self, host: GeneratorHost) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._job: Future[Any] | None = None
        self._over = False

    def generate(self, **arguments: Any) -> Any:
        """A thread that may block. The generation's result, or its error.

        Raises ``concurrent.futures.CancelledError`` when the request ended before its turn.
        """
        with self._lock:
            job = self._job = self._host.submit(arguments)
            if self._over:
                job.cancel()
        try:
            return job.result()
        finally:
            with self._lock:
                self._job = None
            del job  # it keeps the error, whose frames would keep it

    def leave(self) -> None:
        """Any thread. The request is over: give up the turn. What has begun is left to the host."""
        with self._lock:
            self._over = True
            if self._job is not None and not self._job.cancel() and not self._job.done():
                self._host.left += 1
                logger.info("A generation goes on without its request")


def build_generator(arguments: Mapping[str, Any]) -> Any:
    """In the permanent thread. ``DiffGenerator``, its workers ready.

    Workers are guarded like SGLang's schedulers (`compat.processes.guarded`). Imports what only a
    generator needs, which takes a while; raises what SGLang raises.
    """
    from sglang.multimodal_gen import DiffGenerator
    from sglang.multimodal_gen.runtime import launch_server

    launch_server.bootstrap_scheduler_process = guarded(launch_server.bootstrap_scheduler_process)
    return DiffGenerator.from_pretrained(**arguments)


def open_generator(
    loop: WorkerLoop, build: Callable[[], Any]
) -> AbstractAsyncContextManager[GeneratorHost]:
    """Trio. `build` returns a ``DiffGenerator`` (see `open_host`)."""
    return open_host(GeneratorHost, loop, build)
