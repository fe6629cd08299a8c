# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A thread that lives as long as the process.

SGLang's children ask the kernel to kill them when the *thread* that spawned them ends
(``PR_SET_PDEATHSIG``); a pool thread that idles out would take the engine with it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")


class PermanentThread:
    """Runs jobs one after the other; a job that is left behind goes on and is never joined."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job[Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self._jobs.get().run()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Any thread. Run `job` in its turn; cancelled before that, it never runs."""
        future: Future[T] = Future()
        self._jobs.put(_Job(job, future))
        return future

    async def run(self, job: Callable[[], T]) -> T:
        """Trio. The job's result or error; cancellation leaves at once and does not stop it."""
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()

        def tell(_future: Future[T]) -> None:
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                return  # everybody has left

        future = self.submit(job)
        future.add_done_callback(tell)
        await done.wait()
        try:
            return future.result()
        finally:
            del future  # it keeps the error, whose frames would keep it


class _Job(Generic[T]):
    """One call, and who waits for it."""

    def __init__(self, call: Callable[[], T], future: Future[T]) -> None:
        self._call = call
        self._future = future

    def run(self) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            result = self._call()
        except BaseException as error:
            self._future.set_exception(error)
            # The error keeps this frame, which would keep it in turn.
            del self
        else:
            self._future.set_result(result)
