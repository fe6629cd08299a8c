# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The ways in which a worker goes, and what must come of each."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from compat.processes import descendants
from trio_worker.quickstart.cluster import Process

SECOND_S = 1.3
"""Seconds to the second signal: within 1 s of the first it would be the same request (rule 122)."""

Stop = Callable[[Process], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to go. Statuses are DESIGN §6's, for both implementations."""

    name: str
    stop: Stop
    status: int
    """The right exit status of the worker."""
    share: tuple[float, float] = (0.02, 0.95)
    """The part of the answer that the clients have when it happens: drawn between these."""
    streams: bool = True
    """Whether there are clients."""
    migrates: bool | None = None
    """Whether answers must move to another worker; None: depends on the moment."""
    env: dict[str, str] = field(default_factory=dict)
    """Of the worker that will go."""
    linger_s: float = 1.0
    """Seconds after the worker's end in which its descendants must be gone."""
    why: str = ""
    """For the table."""


async def terminate(worker: Process) -> None:
    """Trio. SIGTERM."""
    worker.signal(signal.SIGTERM)


async def interrupt(worker: Process) -> None:
    """Trio. SIGINT."""
    worker.signal(signal.SIGINT)


async def interrupt_group(worker: Process) -> None:
    """Trio. SIGINT to all of the process group, as a terminal sends it."""
    os.killpg(worker.pid, signal.SIGINT)


async def terminate_twice(worker: Process) -> None:
    """Trio. SIGTERM, and again when nobody can take it for the same request."""
    worker.signal(signal.SIGTERM)
    await trio.sleep(SECOND_S)
    worker.signal(signal.SIGTERM)


async def kill(worker: Process) -> None:
    """Trio. SIGKILL to the worker alone."""
    worker.signal(signal.SIGKILL)


async def kill_scheduler(worker: Process) -> None:
    """Trio. SIGKILL to the engine's scheduler."""
    os.kill(_child(worker, "sglang::scheduler"), signal.SIGKILL)


async def kill_detokenizer(worker: Process) -> None:
    """Trio. SIGKILL to the engine's detokenizer."""
    os.kill(_child(worker, "sglang::detokenizer"), signal.SIGKILL)


def _child(worker: Process, title: str) -> int:
    for pid in descendants(worker.pid):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
            return pid
    raise AssertionError(f"{worker.name} has no {title}")


GRACE = "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"

CASES = (
    Case("SIGTERM", terminate, 0, why="drained for the grace of 5 s, the rest migrates"),
    Case("SIGINT", interrupt, 0, why="the same"),
    Case(
        "SIGINT to the group",
        interrupt_group,
        0,
        why="one request; children must outlive it until the drain is over",
    ),
    Case(
        "second SIGTERM",
        terminate_twice,
        0,
        share=(0.02, 0.5),
        migrates=True,
        env={GRACE: "30"},
        why="migrates at once (the incumbent ignores it and drains on)",
    ),
    Case(
        "grace over",
        terminate,
        0,
        share=(0.02, 0.6),
        migrates=True,
        env={GRACE: "1"},
        why="k tokens, then migration",
    ),
    Case(
        "drain ends early",
        terminate,
        0,
        share=(0.8, 0.95),
        migrates=False,
        env={GRACE: "30"},
        why="out soon after the last stream, not after the grace of 30 s",
    ),
    Case("idle SIGTERM", terminate, 0, streams=False, why="nothing to wait for"),
    Case(
        "kill -9 worker",
        kill,
        -signal.SIGKILL,
        migrates=True,
        linger_s=30.0,
        why="the connection breaks, which migrates; children leave by themselves",
    ),
    Case("kill -9 scheduler", kill_scheduler, 1, migrates=True, why="the engine is dead"),
    Case("kill -9 detokenizer", kill_detokenizer, 1, migrates=True, why="the engine is dead"),
)

BY_NAME = {case.name: case for case in CASES}
