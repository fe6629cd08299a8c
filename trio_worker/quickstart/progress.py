# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the launchers say while they wait: how far a worker's start is, how a stop went."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from trio_worker.quickstart.cluster import READY_LINE, Cluster, Process

Say = Callable[[str], None]

MILESTONES = (
    ("", "importing SGLang and Dynamo (half a minute)"),
    ("dynamo runtime configuration", "imported; connecting to discovery"),
    ("launch_subprocesses", "starting the engine's processes, which import SGLang again"),
    ("Load weight begin", "loading the model"),
    ("Load weight end", "model loaded; allocating the KV cache"),
    ("Engine startup timings", "engine is up; registering"),
    (READY_LINE, "registered; waiting for the frontend to see it"),
)
"""What the worker logs, and what that means; in this order."""

STILL_S = 10.0
"""Seconds after which the launcher repeats what it is waiting for."""


class Clock:
    """Says what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = trio.current_time()

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"[{trio.current_time() - self._started:5.1f} s] {text}", flush=True)


@dataclass
class Stopped:
    """How the cluster ended; a session that is cancelled can't return it."""

    well: bool = True


def milestone(output: str) -> int:
    """The last of MILESTONES that `output` shows."""
    return max(index for index, (line, _) in enumerate(MILESTONES) if line in output)


async def tell_start(
    cluster: Cluster, worker: Process, say: Say, ready: Callable[[], Awaitable[bool]]
) -> None:
    """Trio. Say what `worker` is doing until `ready`. Raises `ProcessDied` for any member."""
    told = -1
    last = trio.current_time()
    while not await ready():
        for process in cluster.members:
            process.raise_if_dead()
        reached = milestone(worker.output())
        if reached > told:
            say(f"{worker.name}: {MILESTONES[reached][1]}")
        elif trio.current_time() - last >= STILL_S:
            say(f"{worker.name}: still {MILESTONES[reached][1]}")
        else:
            await trio.sleep(0.2)
            continue
        told = reached
        last = trio.current_time()


async def orderly_stop(cluster: Cluster, say: Say, strict: bool) -> bool:
    """Trio, shielded. Worker first, then the frontend; whether all ended well.

    Unless `strict`, it is well too if our SIGTERM ended a process that was still importing.
    """
    with trio.CancelScope(shield=True):
        say("stopping the workers, then the frontend")
        statuses = await cluster.stop_all()
        for name, status in statuses.items():
            say(f"{name} ended, status {status}")
        left = cluster.left_behind()
        say(f"processes left behind: {left or 'none'}")
    asked_for = {0} if strict else {0, -signal.SIGTERM}
    return not left and asked_for.issuperset(statuses.values())
