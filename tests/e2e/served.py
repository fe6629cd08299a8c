# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A frontend and one worker, up and answering, as a test sees them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from compat.processes import descendants
from tests.e2e.backing import Backing
from trio_worker.inside import ROUTE
from trio_worker.quickstart.chat import HOST, Answer, chat, get, metric_sum, post
from trio_worker.quickstart.cluster import (
    READY_LINE,
    Cluster,
    Process,
    free_system_port,
    open_cluster,
)

SETTLE_S = 30.0
"""Seconds that an engine gets to be idle again after its clients have left."""

READY_S = 900.0
"""Seconds that a worker may take to start: forty on a quiet machine, minutes on a busy one."""

LINGER_S = 2.0
"""Seconds in which a resource tracker, say, sees that its process has gone."""

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """What the scheduler has to do."""

    running: int
    waiting: int


@dataclass
class Served:
    """One worker behind a frontend. Its HTTP may be asked from any Trio run."""

    cluster: Cluster
    backing: Backing
    worker: Process
    system_port: int

    @property
    def port(self) -> int:
        """HTTP port of the frontend."""
        return self.cluster.port

    @property
    def model(self) -> str:
        """What to call the model."""
        return self.backing.name

    async def ask(self, question: str, **options: Any) -> Answer:
        """Trio. One chat completion, greedy and streamed unless `options` say otherwise."""
        return await chat(self.port, self.model, question, **{"temperature": 0, **options})

    async def complete(self, prompt: str, **options: Any) -> Answer:
        """Trio. One text completion, greedy unless `options` say otherwise."""
        payload = {"model": self.model, "prompt": prompt, "temperature": 0, **options}
        return await post(self.port, "/v1/completions", payload)

    async def load(self) -> Load:
        """Trio. Asked of the engine itself, through an engine route."""
        answer = await post(self.system_port, "/engine/loads", {})
        assert answer.status == 200, answer.errors
        snapshots = answer.body["result"]
        return Load(
            sum(one["num_running_reqs"] for one in snapshots),
            sum(one["num_waiting_reqs"] for one in snapshots),
        )

    async def metric(self, name: str, **labels: str) -> float:
        """Trio. The sum over the worker's series of `name` that carry `labels`."""
        return await metric(self.system_port, name, **labels)

    async def in_flight(self) -> float:
        """Trio. Requests that the runtime has given to this worker's generate endpoint."""
        return await in_flight(self.system_port)

    async def inside(self) -> dict[str, Any]:
        """Trio. What the worker tells of itself (`trio_worker.inside`)."""
        answer = await post(self.system_port, f"/engine/{ROUTE}", {})
        assert answer.status == 200, answer.errors
        return dict(answer.body)

    async def wait_idle(self) -> None:
        """Trio. Until engine, registry, worker and runtime hold nothing. Raises AssertionError."""
        seen: dict[str, float] = {}
        with trio.move_on_after(SETTLE_S):
            while True:
                load, inside = await self.load(), await self.inside()
                seen = {
                    "running": load.running,
                    "waiting": load.waiting,
                    "registry": inside["engine_registry"],
                    "requests": inside["counts"]["live"],
                    "feeders": inside["feeders"]["running"],
                    "in flight": await self.in_flight(),
                }
                if not any(seen.values()):
                    return
                await trio.sleep(POLL_S)
        raise AssertionError(f"not idle after {SETTLE_S:g} s: {seen}")

    def resident_bytes(self) -> int:
        """Memory of the worker's own process, children not counted."""
        fields = Path(f"/proc/{self.worker.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", fields)
        assert match is not None
        return int(match[1]) * 1024


async def left_behind(cluster: Cluster) -> list[int]:
    """Trio. Processes that outlive their parents by more than `LINGER_S`."""
    with trio.move_on_after(LINGER_S):
        while cluster.left_behind():
            await trio.sleep(POLL_S)
    return cluster.left_behind()


@dataclass(frozen=True, slots=True)
class Ending:
    """What was left when a cluster had been stopped in order."""

    statuses: dict[str, int]
    seconds: float
    """From SIGTERM to the worker's exit."""
    descendants: list[int]
    """Of the worker, that still lived."""
    left_behind: list[int]
    registered: list[Path]
    worker_output: str


async def end(served: Served) -> Ending:
    """Trio, in the portal. Stop the worker, then the frontend, and look around."""
    family = descendants(served.worker.pid)
    started = trio.current_time()
    await served.cluster.stop(served.worker)
    seconds = trio.current_time() - started
    statuses = await served.cluster.stop_all()
    return Ending(
        statuses,
        seconds,
        living(family),
        await left_behind(served.cluster),
        served.cluster.registered(),
        served.worker.output(),
    )


def living(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that still exist, zombies not counted."""
    found = []
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(pid)
    return found


@asynccontextmanager
async def open_served(
    backing: Backing,
    *,
    module: str = "trio_worker",
    frontend_args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    say: Callable[[str], object] = lambda _text: None,
) -> AsyncIterator[Served]:
    """Trio. One frontend, one worker, ready to answer."""
    async with open_cluster(backing.model, model_name=backing.name, env=env) as cluster:
        await cluster.start_frontend(*frontend_args)
        system_port = free_system_port()
        started = trio.current_time()
        worker = await cluster.start_worker(
            *backing.args, module=module, env=system_env(backing, system_port)
        )
        peers = [
            await cluster.start_worker(*args, module=module, env=backing.env)
            for args in backing.peers
        ]
        say(f"{module} starts, serving {backing.name}: half a minute, more on a busy machine")
        for peer in peers:
            await peer.wait_line(READY_LINE, READY_S)
        await ready(cluster, worker, backing.ready_line)
        say(f"ready after {trio.current_time() - started:.0f} s")
        yield Served(cluster, backing, worker, system_port)


async def metric(system_port: int, name: str, **labels: str) -> float:
    """Trio. The sum over one worker's series of `name` that carry `labels`."""
    status, body = await get(system_port, "/metrics")
    assert status == 200
    return metric_sum(body.decode(), name, **labels)


async def in_flight(system_port: int) -> float:
    """Trio. Requests at the generate endpoint of the worker with this status port."""
    name = "dynamo_component_inflight_requests"
    return await metric(system_port, name, dynamo_endpoint="generate")


def system_env(backing: Backing, system_port: int) -> dict[str, str]:
    """A worker's environment with its status server on loopback."""
    return {**backing.env, "DYN_SYSTEM_PORT": str(system_port), "DYN_SYSTEM_HOST": HOST}


async def ready(cluster: Cluster, worker: Process, line: str = READY_LINE) -> None:
    """Trio. Until `worker` has registered and the frontend knows. Raises `ProcessDied`."""
    await worker.wait_line(line, READY_S)
    await cluster.wait_model()
