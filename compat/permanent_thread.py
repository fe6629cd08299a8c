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
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")


class PermanentThread:
    """Runs jobs one after the other; a job that is left behind goes on and is never joined."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    async def run(self, job: Callable[[], T]) -> T:
        """Trio. The job's result or error; cancellation leaves at once and does not stop it."""
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        results: list[Any] = []

        def work() -> None:
            results.append(outcome.capture(job))
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                return  # everybody has left

        self._jobs.put(work)
        await done.wait()
        result: T = results.pop().unwrap()
        return result
