# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""How late the loop is: what a task that only sleeps sees of everybody else's turns."""

from __future__ import annotations

import trio

from trio_worker.buckets import Buckets

LOOK_EVERY_S = 0.1

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """One worker's."""

    def __init__(self) -> None:
        self.delays = Buckets(BOUNDS_S)
        """Seconds between when the watcher was due and when it ran."""
        self.last = 0.0

    async def watch(self) -> None:
        """Trio. A service that runs until cancelled."""
        while True:
            due = trio.current_time() + LOOK_EVERY_S
            await trio.sleep_until(due)
            self.last = trio.current_time() - due
            self.delays.observe(self.last)
