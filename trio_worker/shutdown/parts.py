# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the plan shuts down, as far as it knows it. All methods are Trio, none is async in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class LiveRequests(Protocol):
    """`trio_worker.requests.live.LiveRequests`: what is between admission and outcome."""

    @property
    def count(self) -> int:
        """Requests now."""

    async def wait_idle(self, quiet: float) -> None:
        """Until there has been no request for `quiet` seconds; may look back."""

    def migrate_all(self) -> None:
        """Refuse new requests and tell the live ones to move; idempotent (rules 95, 124)."""

    async def wait_all_ended(self) -> None:
        """Until no request is left."""


class Runtime(Protocol):
    """`compat.runtime.WorkerRuntime`: Dynamo's runtime and the endpoints of the role."""

    def refuse_registration(self) -> None:
        """The latch of rule 123: from here on nothing registers. Raises nothing."""

    async def withdraw(self) -> None:
        """Unregister all endpoints; a registration in flight is awaited, then undone."""

    def shutdown(self, drain_seconds: float) -> None:
        """Tell the runtime to stop; its own drain gets `drain_seconds`. Returns at once."""

    async def wait_served(self) -> None:
        """Until every serve future has resolved."""

    async def wait_gone(self) -> None:
        """Until discovery no longer shows our instance, where that can be seen."""


class Serving(Protocol):
    """The serving nursery."""

    async def join(self) -> None:
        """Until nothing runs in it any more."""


class Services(Protocol):
    """The service nursery: metrics, KV events, pause followers, canaries."""

    async def close(self) -> None:
        """Cancel them and wait until they have ended."""


class Engine(Protocol):
    """`compat.host.EngineHost`."""

    async def close(self, seconds: float) -> None:
        """End feeders, schedulers and all children. Raises `trio.TooSlowError`."""

    async def stop_manager_tasks(self, seconds: float) -> None:
        """Cancel and join SGLang's own asyncio tasks; its watchdog would ``sys.exit``."""

    async def wait_exited(self) -> None:
        """Until the schedulers of this node have exited by themselves."""


class Children(Protocol):
    """`trio_worker.children.Children`: the processes of a gateway that serve."""

    def ask_to_stop(self) -> None:
        """Tell each to stop as a worker does."""

    def tell_engine_dead(self) -> None:
        """Tell each to migrate what it has: its engine is dead."""

    async def hurry(self) -> None:
        """Tell each to migrate now."""

    async def wait_exited(self) -> None:
        """Until each has exited."""

    def kill(self) -> list[int]:
        """Kill those that are left; their pids."""

    @property
    def failures(self) -> int:
        """Children that exited with a status other than 0."""


@dataclass
class Parts:
    """What there is to shut down so far: each is set once it exists. None: nothing to do."""

    requests: LiveRequests | None = None
    runtime: Runtime | None = None
    serving: Serving | None = None
    services: Services | None = None
    engine: Engine | None = None
    children: Children | None = None
