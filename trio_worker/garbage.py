# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""When Python's cyclic collector may run.

A full collection walks SGLang's and torch's whole heap: stalls of 0.1 to 0.3 s every few seconds
(field report D30). Our steady state makes no cycles, so nothing is lost by not looking: the heap
is frozen after start-up, young generations are collected as usual, and a full collection runs
only while no stream is live, or when memory has grown by so much that it has to.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from trio_worker.buckets import Buckets

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""Seconds between looks at whether a full collection is due."""

IDLE_EVERY_S = 60.0
"""Seconds between full collections of an idle worker."""

GROWTH_BYTES = 1 << 30
"""Growth of resident memory that demands a full collection even under load."""

YOUNG_THRESHOLD = 10_000
"""Allocations between two collections of the youngest generation; Python's default is 700."""

NEVER = 1_000_000_000

PAUSES_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the histogram of pauses."""


@dataclass(slots=True)
class GarbageStats:
    """What the collector did since the policy began."""

    full: int = 0
    full_while_live: int = 0
    longest_pause_s: float = 0.0
    pause_s: float = 0.0


class Garbage:
    """One worker's policy; ``off`` leaves everything as Python has it, and still counts."""

    def __init__(self, policy: str, live: Callable[[], int]) -> None:
        self.policy = policy
        self.stats = GarbageStats()
        self.pauses = Buckets(PAUSES_S)
        self._live = live
        self._began = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Neither flavour. Count collections and their pauses."""
        gc.callbacks.append(self._on_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began = now
            return
        pause = now - self._began
        stats = self.stats
        stats.pause_s += pause
        self.pauses.observe(pause)
        stats.longest_pause_s = max(stats.longest_pause_s, pause)
        if info["generation"] == 2:
            stats.full += 1
            stats.full_while_live += self._live() > 0

    async def keep(self) -> None:
        """Trio. A service: freeze what start-up has built, then collect when nobody waits.

        Restores the thresholds and thaws the heap on leaving.
        """
        with self.counting():
            if self.policy == "off":
                await trio.sleep_forever()
            thresholds = gc.get_threshold()
            gc.collect()
            gc.freeze()
            gc.set_threshold(max(YOUNG_THRESHOLD, thresholds[0]), thresholds[1], NEVER)
            logger.info("Froze %d objects; full collections wait for idle", gc.get_freeze_count())
            try:
                await self._collect_when_idle()
            finally:
                gc.set_threshold(*thresholds)
                gc.unfreeze()

    async def _collect_when_idle(self) -> None:
        baseline = resident_bytes()
        last = trio.current_time()
        while True:
            await trio.sleep(LOOK_EVERY_S)
            grown = resident_bytes() - baseline > GROWTH_BYTES
            idle = self._live() == 0 and trio.current_time() - last >= IDLE_EVERY_S
            if grown or idle:
                gc.collect()
                last = trio.current_time()
                baseline = max(baseline, resident_bytes()) if grown else baseline


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
