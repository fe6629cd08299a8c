# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Counts what the loop costs Trio: the steps of its two tasks, and its batches.

Tests that assert an exact count also take `no_time_bound`: a busy machine may stop the test within
a batch for longer than a batch may take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

import compat.loop
from compat.loop import WorkerLoop


class LoopSteps(trio.abc.Instrument):
    """Steps of the runner and of the poller between `counted_steps()` and its end."""

    def __init__(self) -> None:
        self.runner = 0
        self.poller = 0
        self.drains = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.runner += task.name.endswith("WorkerLoop._run_ready")
        self.poller += task.name.endswith("WorkerLoop._poll")

    @property
    def total(self) -> int:
        return self.runner + self.poller


@contextmanager
def counted_steps(loop: WorkerLoop) -> Iterator[LoopSteps]:
    """Count for the length of the block (Trio)."""
    steps = LoopSteps()
    drain = loop._drain

    def counting_drain() -> None:
        steps.drains += 1
        drain()

    loop._drain = counting_drain  # type: ignore[method-assign]
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)
        loop._drain = drain  # type: ignore[method-assign]


@pytest.fixture
def no_time_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches end by their count alone."""
    monkeypatch.setattr(compat.loop, "BATCH_SECONDS", math.inf)
