# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Workers of one implementation behind one frontend, each known by what it registers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from compat.processes import descendants
from tests.e2e.backing import Backing, Recitation, StandIn
from tests.e2e.served import ready, system_env
from tests.trials.cases import Case
from trio_worker.quickstart.chat import get, metric_sum
from trio_worker.quickstart.cluster import Cluster, Process, free_system_port, open_cluster

MIGRATION_LIMIT = 3

MODULES = {
    ("ours", True): "trio_worker",
    ("ours", False): "trio_worker",
    ("incumbent", True): "dynamo.sglang",
    ("incumbent", False): "tests.trials.incumbent_launcher",
}
"""What to run, by implementation and whether the engine is real."""

FRONTEND_SEES_S = 0.5
"""Seconds that a frontend gets to see a change in file discovery."""


@dataclass
class Member:
    """One worker that is ready."""

    process: Process
    system_port: int
    files: list[Path]
    """What it has put into discovery."""

    async def in_flight(self) -> float:
        """Trio. Requests at its generate endpoint."""
        status, body = await get(self.system_port, "/metrics")
        if status != 200:
            return 0.0
        name = "dynamo_component_inflight_requests"
        return metric_sum(body.decode(), name, dynamo_endpoint="generate")

    def family(self) -> list[int]:
        """Its living descendants."""
        return descendants(self.process.pid)

    def still_registered(self) -> list[Path]:
        """What of it discovery shows."""
        return [path for path in self.files if path.exists()]


@dataclass
class Members:
    """A frontend that migrates, and workers in order of their start."""

    implementation: str
    cluster: Cluster
    backing: Backing
    started: int = 0
    _starting: trio.Lock = field(default_factory=trio.Lock)

    async def start(self, case: Case | None, *args: str) -> Member:
        """Trio. One more worker, ready; its environment is that of the case that will end it."""
        async with self._starting:  # one at a time: what is new in discovery is its own
            known = set(self.cluster.registered())
            port = free_system_port()
            worker = await self.cluster.start_worker(
                *self.backing.args,
                *args,
                module=MODULES[self.implementation, isinstance(self.backing, Recitation)],
                env={**system_env(self.backing, port), **(case.env if case else {})},
                name=f"{self.implementation}-{self.started}",
            )
            self.started += 1
            await ready(self.cluster, worker)
            await trio.sleep(FRONTEND_SEES_S)
            return Member(worker, port, sorted(set(self.cluster.registered()) - known))

    async def migrations(self) -> float:
        """Trio. Migrations that the frontend has made so far."""
        _, body = await get(self.cluster.port, "/metrics")
        return metric_sum(body.decode(), "dynamo_frontend_model_migration_total")


@asynccontextmanager
async def open_members(
    implementation: str,
    backing: Backing,
    *,
    env: Mapping[str, str] | None = None,
    keep: Path | None = None,
) -> AsyncIterator[Members]:
    """Trio. A frontend without workers yet."""
    root = str(Path(__file__).parents[2])
    async with open_cluster(
        backing.model, model_name=backing.name, env={"PYTHONPATH": root, **(env or {})}, keep=keep
    ) as cluster:
        await cluster.start_frontend("--migration-limit", str(MIGRATION_LIMIT))
        yield Members(implementation, cluster, backing)


def make_backing(folder: Path, *, real: bool, step_ms: float) -> tuple[Backing, int]:
    """Neither flavour. What to serve from, and how many tokens an answer has."""
    if real:
        backing = Recitation.make()
        return backing, len(backing.expected("", 10**6))
    return StandIn.make(folder, f"step_ms={step_ms:g}"), 1000


Say = Callable[[str], object]
