# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The shutdown plan in virtual seconds: every path, every bound, every second signal."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from trio_worker.shutdown import Bounds, ExitStatus, Phase, Shutdown, StopReason
from trio_worker.shutdown.paths import ASKED_REASONS, FOLLOWER_PATH, GATEWAY_PATH, PATHS

BOUNDS = Bounds(total=30.0, grace=5.0)
MIGRATION = [StopReason.SIGNAL, StopReason.ENGINE_DEAD, StopReason.LEASE_LOST]


@dataclass
class World:
    """Fakes of all the plan's parts, which write down what happens to them and when.

    `takes` holds seconds by step (default 0), `hangs` steps that never end, `raises` what a step
    raises.
    """

    takes: dict[str, float] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    raises: dict[str, BaseException] = field(default_factory=dict)
    leave_s: float = 0.0
    """Seconds that a request takes to end once it was told to migrate; inf: never."""
    events: list[tuple[float, str]] = field(default_factory=list)
    began: float = field(default_factory=trio.current_time)

    def now(self) -> float:
        return trio.current_time() - self.began

    def note(self, event: str) -> None:
        self.events.append((round(self.now(), 6), event))

    async def step(self, name: str) -> None:
        self.note(name)
        if name in self.raises:
            raise self.raises[name]
        if name in self.hangs:
            await trio.sleep_forever()
        await trio.sleep(self.takes.get(name, 0.0))

    @property
    def order(self) -> list[str]:
        return [event for _, event in self.events]

    def time_of(self, event: str) -> float:
        return next(when for when, name in self.events if name == event)


class FakeRequests:
    """Counts; ends requests `leave_s` after they were told to migrate."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.count = 0
        self.migrating = False
        self.refused = 0
        self._idle_since: float | None = trio.current_time() - 3600
        self._changed = trio.Event()
        self._told = trio.Event()

    async def request(self, seconds: float) -> None:
        """One request that wants to run for `seconds`."""
        if self.migrating:
            self.refused += 1
            return
        self.count += 1
        self._idle_since = None
        with trio.move_on_after(seconds):
            await self._told.wait()
            await trio.sleep(self.world.leave_s)
        self.count -= 1
        if self.count == 0:
            self._idle_since = trio.current_time()
            self._changed.set()
            self._changed = trio.Event()

    async def wait_idle(self, quiet: float) -> None:
        while True:
            if self._idle_since is None:
                await self._changed.wait()
            elif (left := self._idle_since + quiet - trio.current_time()) > 0:
                await trio.sleep(left)
            else:
                return

    def migrate_all(self) -> None:
        self.world.note("migrate")
        self.migrating = True
        self._told.set()

    async def wait_all_ended(self) -> None:
        await self.world.step("ended")
        while self.count:
            await self._changed.wait()


class FakeRuntime:
    def __init__(self, world: World) -> None:
        self.world = world
        self.drain_seconds = 0.0

    def refuse_registration(self) -> None:
        self.world.note("latch")

    async def withdraw(self) -> None:
        await self.world.step("withdraw")

    def shutdown(self, drain_seconds: float) -> None:
        self.world.note("shutdown")
        self.drain_seconds = drain_seconds

    async def wait_served(self) -> None:
        await self.world.step("served")

    async def wait_gone(self) -> None:
        await self.world.step("gone")


class FakeServing:
    def __init__(self, world: World) -> None:
        self.world = world

    async def join(self) -> None:
        await self.world.step("join")


class FakeServices:
    def __init__(self, world: World) -> None:
        self.world = world

    async def close(self) -> None:
        await self.world.step("services")


class FakeEngine:
    def __init__(self, world: World) -> None:
        self.world = world
        self.seconds = 0.0

    async def close(self, seconds: float) -> None:
        self.seconds = seconds
        await self.world.step("engine")

    async def stop_manager_tasks(self, seconds: float) -> None:
        await self.world.step("manager tasks")

    async def wait_exited(self) -> None:
        await self.world.step("exited")


def build(
    world: World, bounds: Bounds = BOUNDS, *, leads: bool = True
) -> tuple[Shutdown, FakeRequests]:
    shutdown = Shutdown(bounds, leads=leads)
    requests = FakeRequests(world)
    shutdown.parts.requests = requests
    shutdown.parts.runtime = FakeRuntime(world)
    shutdown.parts.serving = FakeServing(world)
    shutdown.parts.services = FakeServices(world)
    shutdown.parts.engine = FakeEngine(world)
    return shutdown, requests


async def stop(shutdown: Shutdown, reason: StopReason = StopReason.SIGNAL) -> float:
    """Ask and carry out; the seconds that it took."""
    began = trio.current_time()
    shutdown.request(reason)
    await shutdown.run()
    return trio.current_time() - began


def seconds_of(shutdown: Shutdown) -> dict[str, float]:
    return {record.phase.label: record.seconds for record in shutdown.records}


def outcomes(shutdown: Shutdown) -> dict[str, str]:
    return {record.phase.label: record.outcome for record in shutdown.records}


# ---- paths ----

FROM_STOP = ["migrate", "shutdown", "served", "join", "services", "engine", "manager tasks", "gone"]


@pytest.mark.parametrize(
    ("reason", "order", "status"),
    [
        (StopReason.SIGNAL, ["latch", "withdraw", "migrate", "ended", *FROM_STOP], 0),
        (StopReason.ENGINE_DEAD, ["latch", "withdraw", "migrate", "ended", *FROM_STOP], 1),
        (StopReason.INTERNAL_ERROR, ["latch", "withdraw", "migrate", "ended", *FROM_STOP], 1),
        (StopReason.LEASE_LOST, ["latch", "migrate", "ended", *FROM_STOP], 1),
        (StopReason.STARTUP_FAILED, ["latch", *FROM_STOP], 1),
        (StopReason.STARTUP_STOPPED, ["latch"], 0),
        (StopReason.SNAPSHOT_TAKEN, ["latch"], 0),
        (StopReason.GROUP_ENDED, ["latch", "services", "engine", "manager tasks"], 0),
        (StopReason.CHILD_DIED, ["latch", *FROM_STOP], 1),
    ],
)
async def test_each_reason_takes_its_path(
    reason: StopReason, order: list[str], status: int, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    shutdown, _ = build(world)
    await stop(shutdown, reason)
    assert [event for event in world.order if event != "withdraw"] == [
        event for event in order if event != "withdraw"
    ]
    # Where it runs beside the migration, which comes first is Trio's choice.
    if "withdraw" in order:
        assert world.order.index("withdraw") < world.order.index("shutdown")
    else:
        assert "withdraw" not in world.order
    assert shutdown.status == status
    assert shutdown.finished.is_set()
    assert [record.phase for record in shutdown.records if record.phase in PATHS[reason]] == [
        record.phase for record in shutdown.records
    ]


def test_every_reason_has_a_path_that_ends_the_process() -> None:
    assert set(PATHS) == set(StopReason)
    for path in (*PATHS.values(), FOLLOWER_PATH, GATEWAY_PATH):
        assert path[-1] is Phase.EXIT
        assert [phase.number for phase in path] == sorted(phase.number for phase in path)


async def test_a_reason_without_parts_needs_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for reason in StopReason:
        shutdown = Shutdown(BOUNDS)
        assert await stop(shutdown, reason) == 0
        # And says nothing about what did not happen.
        assert shutdown.records == []
        assert not shutdown.failures


async def test_idle_worker_is_out_after_the_quiet_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"withdraw": 0.01, "engine": 0.2})
    shutdown, _ = build(world)
    assert await stop(shutdown) == pytest.approx(0.01 + 0.3 + 0.2)
    assert outcomes(shutdown)["drain"] == "idle"
    assert shutdown.status is ExitStatus.ASKED


async def test_drain_ends_soon_after_the_last_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"withdraw": 0.1})
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        for seconds in (0.5, 2.0, 1.0):
            nursery.start_soon(requests.request, seconds)
        await trio.testing.wait_all_tasks_blocked()
        await stop(shutdown)
    assert world.time_of("withdraw") == 0
    assert world.time_of("migrate") == pytest.approx(2.3)
    assert outcomes(shutdown) == {
        "withdraw": "done",
        "drain": "idle",
        "migrate": "done",
        "stop": "done",
        "engine": "done",
        "deferred": "done",
        "exit": "done",
    }


async def test_drain_ends_with_the_grace_and_the_rest_migrates(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"withdraw": 0.5}, leave_s=0.25)
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        await stop(shutdown)
    assert world.time_of("migrate") == pytest.approx(0.5 + 5.0)
    assert world.time_of("shutdown") == pytest.approx(0.5 + 5.0 + 0.25)
    assert outcomes(shutdown)["drain"] == "grace over"
    assert shutdown.status is ExitStatus.ASKED
    assert not shutdown.overruns


async def test_arrivals_during_the_grace_are_served_and_keep_it_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    shutdown, requests = build(world)

    async def arrive(after: float, seconds: float) -> None:
        await trio.sleep(after)
        await requests.request(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrive, 0.2, 0.1)  # within the first quiet time
        nursery.start_soon(arrive, 0.5, 0.6)  # 0.2 s after that one has ended
        nursery.start_soon(arrive, 1.39, 0.11)  # 0.29 s after that one
        nursery.start_soon(arrive, 1.81, 1.0)  # 0.31 s after: too late
        await stop(shutdown)
    assert world.time_of("migrate") == pytest.approx(1.5 + 0.3)
    assert requests.refused == 1
    assert outcomes(shutdown)["drain"] == "idle"


async def test_quiet_before_the_withdrawal_does_not_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"withdraw": 1.5})
    shutdown, requests = build(world)
    assert requests.count == 0
    await stop(shutdown)
    assert world.time_of("migrate") == pytest.approx(1.5 + 0.3)


async def test_grace_zero_is_no_drain_but_withdraws_first(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = World(takes={"withdraw": 0.5})
    shutdown, _ = build(world, Bounds(grace=0.0))
    await stop(shutdown)
    assert world.time_of("migrate") == pytest.approx(0.5)
    assert "drain" not in outcomes(shutdown)
    assert "Grace period" not in caplog.text


async def test_dead_engine_withdraws_and_migrates_at_the_same_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"withdraw": 1.0}, leave_s=0.1)
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        await stop(shutdown, StopReason.ENGINE_DEAD)
    assert world.time_of("withdraw") == world.time_of("migrate") == 0
    assert seconds_of(shutdown)["migrate"] == pytest.approx(0.1)
    assert world.time_of("shutdown") == pytest.approx(1.0)
    assert shutdown.status is ExitStatus.FAILED


async def test_failed_start_up_leaves_no_request_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(leave_s=0.1)
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        await stop(shutdown, StopReason.STARTUP_FAILED)
    assert requests.migrating
    assert requests.count == 0
    assert shutdown.status is ExitStatus.FAILED


async def test_follower_waits_for_its_group(autojump_clock: trio.testing.MockClock) -> None:
    world = World(takes={"exited": 7.0})
    shutdown, _ = build(world, leads=False)
    await stop(shutdown)
    assert world.order == ["latch", "exited", "services", "engine", "manager tasks"]
    assert world.time_of("services") == pytest.approx(7.0)
    assert outcomes(shutdown)["group"] == "exited"
    assert shutdown.status is ExitStatus.ASKED


async def test_follower_goes_when_its_group_does_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(hangs={"exited"})
    shutdown, _ = build(world, leads=False)
    await stop(shutdown)
    # 30 s less what is reserved for engine, deferred and exit.
    assert world.time_of("services") == pytest.approx(30 - 5 - 0.5 - 0.5)
    assert outcomes(shutdown)["group"] == "time over"
    assert shutdown.status is ExitStatus.ASKED


async def test_end_of_the_group_is_no_alarm_on_a_follower(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"exited": 3.0})
    shutdown, _ = build(world, leads=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop, shutdown)
        await trio.sleep(2.0)
        shutdown.request(StopReason.ENGINE_DEAD, "rank 0 told it to go")
    assert world.time_of("services") == pytest.approx(3.0)
    assert shutdown.status is ExitStatus.ASKED


async def test_follower_hurries_on_a_second_signal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(hangs={"exited"})
    shutdown, _ = build(world, leads=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop, shutdown)
        await trio.sleep(2.0)
        shutdown.hurry()
    assert world.time_of("services") == pytest.approx(2.0)
    assert outcomes(shutdown)["group"] == "hurried"
    assert shutdown.status is ExitStatus.ASKED


# ---- gateways ----


class FakeChildren:
    """`exits` seconds after they were told they are gone; `killed` is what is left then."""

    def __init__(self, world: World, failures: int = 0) -> None:
        self.world = world
        self.failures = failures
        self.living = [101, 102]

    def ask_to_stop(self) -> None:
        self.world.note("asked")

    def tell_engine_dead(self) -> None:
        self.world.note("told dead")

    async def hurry(self) -> None:
        self.world.note("hurried")

    async def wait_exited(self) -> None:
        await self.world.step("children")
        self.living = []

    def kill(self) -> list[int]:
        self.world.note("kill")
        return self.living


def build_gateway(world: World, failures: int = 0) -> Shutdown:
    shutdown, _ = build(world)
    shutdown.parts.requests = None
    shutdown.parts.children = FakeChildren(world, failures)
    return shutdown


AFTER_CHILDREN = ["shutdown", "served", "join", "services", "engine", "manager tasks", "gone"]


@pytest.mark.parametrize("reason", list(StopReason))
async def test_children_leave_before_the_engine_whatever_the_reason(
    reason: StopReason, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(takes={"children": 6.0})
    shutdown = build_gateway(world)
    await stop(shutdown, reason)
    told = "told dead" if reason is StopReason.ENGINE_DEAD else "asked"
    assert world.order == ["latch", told, "children", "kill", *AFTER_CHILDREN]
    assert world.time_of("shutdown") == pytest.approx(6.0)
    assert shutdown.status == (0 if reason in ASKED_REASONS else 1)


async def test_children_that_stay_are_killed(autojump_clock: trio.testing.MockClock) -> None:
    world = World(hangs={"children"})
    shutdown = build_gateway(world)
    seconds = await stop(shutdown)
    # 30 s less what is reserved for stop, engine, deferred and exit.
    assert world.time_of("kill") == pytest.approx(30 - 1 - 5 - 0.5 - 0.5)
    assert seconds <= 30
    assert shutdown.status is ExitStatus.FORCED
    # By then, each had its own total behind it, and its last resort.
    assert BOUNDS.of_children() + 1.5 + 2 < world.time_of("kill")


async def test_a_child_that_leaves_with_a_failure_is_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shutdown = build_gateway(World(), failures=1)
    await stop(shutdown)
    assert shutdown.status is ExitStatus.FAILED


async def test_a_second_signal_reaches_the_children(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"children": 9.0})
    shutdown = build_gateway(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop, shutdown)
        await trio.sleep(2.0)
        shutdown.hurry()
    assert world.time_of("hurried") == pytest.approx(2.0)
    # Told to hurry, they are still waited for.
    assert world.time_of("kill") == pytest.approx(9.0)
    assert shutdown.status is ExitStatus.ASKED


@pytest.mark.parametrize("total", [2.0, 8.0, 30.0, 600.0])
def test_children_get_less_time_than_their_leader(total: float) -> None:
    bounds = Bounds(total=total, grace=5.0)
    killed_after = bounds.limit(Phase.CHILDREN, GATEWAY_PATH[1:], total)
    assert 0 < bounds.of_children() < killed_after < total


# ---- bounds ----


@pytest.mark.parametrize(
    ("step", "phase", "bound", "status"),
    [
        ("withdraw", "withdraw", 2.0, ExitStatus.FAILED),
        ("ended", "migrate", 1.5, ExitStatus.FAILED),
        ("served", "stop", 2.0, ExitStatus.FAILED),
        ("join", "stop", 2.0, ExitStatus.FAILED),
        ("services", "engine", 1.0, ExitStatus.FAILED),
        ("engine", "engine", 17.0, ExitStatus.FORCED),
        ("manager tasks", "deferred", 1.0, ExitStatus.FAILED),
        ("gone", "exit", 1.0, ExitStatus.ASKED),
    ],
)
async def test_a_part_that_hangs_costs_its_bound_and_no_more(
    step: str,
    phase: str,
    bound: float,
    status: ExitStatus,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(hangs={step})
    shutdown, _ = build(world)
    assert await stop(shutdown) == pytest.approx(0.3 + bound)
    assert seconds_of(shutdown)[phase] == pytest.approx(bound)
    assert shutdown.status is status
    # All the others had their turn.
    assert set(world.order) == {"latch", "withdraw", "migrate", "ended", *FROM_STOP} - (
        {"join"} if step == "served" else set()
    )
    name = step if step in ("services", "engine") else phase
    if status is ExitStatus.ASKED:
        assert not shutdown.overruns
    else:
        assert shutdown.overruns == {name: 1}
        assert f"not done after {bound:.2f} s, going on: {name}" in caplog.text


@pytest.mark.parametrize("total", [30.0, 12.0, 5.0, 1.0, 0.25])
@pytest.mark.parametrize("reason", [*MIGRATION, StopReason.STARTUP_FAILED])
async def test_total_holds_when_everything_hangs(
    reason: StopReason, total: float, autojump_clock: trio.testing.MockClock
) -> None:
    steps = {"withdraw", "ended", "served", "join", "services", "engine", "manager tasks", "gone"}
    world = World(hangs=steps, leave_s=float("inf"))
    shutdown, requests = build(world, Bounds(total=total, grace=60.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 10_000.0)
        await trio.testing.wait_all_tasks_blocked()
        assert await stop(shutdown, reason) <= total + 1e-6
        nursery.cancel_scope.cancel()
    assert shutdown.status is ExitStatus.FORCED
    # Short of time, still nobody is forgotten.
    assert {"migrate", "shutdown", "services", "engine", "manager tasks"} <= set(world.order)
    assert all(record.seconds > 0 for record in shutdown.records)


async def test_long_grace_leaves_the_later_phases_their_reserve(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(hangs={"ended", "served", "engine", "manager tasks", "gone"})
    shutdown, requests = build(world, Bounds(total=30.0, grace=60.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        assert await stop(shutdown) == pytest.approx(30.0)
        nursery.cancel_scope.cancel()
    assert seconds_of(shutdown) == pytest.approx(
        {
            "withdraw": 0.0,
            "drain": 21.5,
            "migrate": 1.5,
            "stop": 1.0,
            "engine": 5.0,
            "deferred": 0.5,
            "exit": 0.5,
        }
    )
    assert "A grace period of 60.00s does not fit into 30.0 s" in caplog.text


async def test_engine_gets_what_earlier_phases_did_not_need(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(hangs={"engine"})
    shutdown, _ = build(world, Bounds(total=15.0, grace=5.0))
    await stop(shutdown)
    assert seconds_of(shutdown)["engine"] == pytest.approx(15.0 - 0.3 - 0.5 - 0.5)


async def test_runtime_is_told_how_long_its_own_drain_may_take(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    shutdown, _ = build(world)
    await stop(shutdown)
    assert isinstance(shutdown.parts.runtime, FakeRuntime)
    assert shutdown.parts.runtime.drain_seconds == pytest.approx(2.0)


async def test_time_that_a_signal_waited_counts(autojump_clock: trio.testing.MockClock) -> None:
    world = World(hangs={"withdraw", "ended", "served", "engine", "manager tasks", "gone"})
    shutdown, _ = build(world)
    began = trio.current_time()
    shutdown.request(StopReason.SIGNAL, ago=20.0)
    await shutdown.run()
    assert trio.current_time() - began == pytest.approx(10.0)


def test_limits_never_add_up_to_more_than_the_total() -> None:
    choose = random.Random(7)
    for _ in range(2000):
        bounds = Bounds(total=choose.uniform(0, 60), grace=choose.choice([0, 0.1, 5, 1000]))
        path = choose.choice([*PATHS.values(), FOLLOWER_PATH, GATEWAY_PATH])
        left = bounds.total
        for place, phase in enumerate(path):
            limit = bounds.limit(phase, path[place + 1 :], left)
            assert 0 <= limit <= bounds.of(phase)
            # Any phase may stop short; the next one must still fit.
            left -= limit * choose.choice([0, 0.5, 1])
        assert left >= -1e-9


def test_no_time_at_all_is_no_error() -> None:
    path = PATHS[StopReason.SIGNAL]
    for place, phase in enumerate(path):
        assert BOUNDS.limit(phase, path[place + 1 :], -3.0) == 0
        assert BOUNDS.limit(phase, path[place + 1 :], 0.0) == 0


def test_the_defaults_fit_into_the_total() -> None:
    path = PATHS[StopReason.SIGNAL]
    assert sum(BOUNDS.of(phase) for phase in path) <= BOUNDS.total


@pytest.mark.parametrize(
    ("value", "grace"), [(None, 5.0), ("", 5.0), ("x", 5.0), ("-1", 0.0), ("0", 0.0), ("7.5", 7.5)]
)
def test_the_grace_is_the_incumbents(
    value: str | None, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, value)
    assert Bounds().grace == grace


# ---- failures ----


def errors() -> list[Callable[[], BaseException]]:
    return [
        lambda: RuntimeError("broken"),
        lambda: SystemExit(3),
        lambda: ExceptionGroup("several", [RuntimeError("broken")]),
        lambda: OSError(5, "input/output"),
    ]


@pytest.mark.parametrize("error", errors())
@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("withdraw", "withdraw"),
        ("ended", "migrate"),
        ("served", "stop"),
        ("join", "stop"),
        ("services", "services"),
        ("engine", "engine"),
        ("manager tasks", "deferred"),
        ("gone", "exit"),
    ],
)
async def test_a_failing_phase_is_named_and_stops_nothing(
    step: str,
    name: str,
    error: Callable[[], BaseException],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(raises={step: error()})
    shutdown, _ = build(world)
    assert await stop(shutdown) == pytest.approx(0.3)
    assert shutdown.failures == {name: 1}
    assert shutdown.status is ExitStatus.FAILED
    assert f"Shutdown phase failed: {name}" in caplog.text
    assert {"manager tasks", "gone"} <= set(world.order)


async def test_a_drain_that_fails_goes_on_to_migrate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    shutdown, requests = build(world)

    async def broken(quiet: float) -> None:
        raise RuntimeError("broken")

    requests.wait_idle = broken  # type: ignore[method-assign]
    await stop(shutdown)
    assert outcomes(shutdown)["drain"] == "failed"
    assert requests.migrating
    assert shutdown.status is ExitStatus.FAILED


async def test_an_engine_whose_own_bound_is_faster_counts_as_overrun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(raises={"engine": trio.TooSlowError()})
    shutdown, _ = build(world)
    await stop(shutdown)
    assert shutdown.overruns == {"engine": 1}
    assert shutdown.status is ExitStatus.FORCED


async def test_a_part_that_returns_when_cancelled_has_overrun_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    shutdown, _ = build(world)

    async def close(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()

    assert isinstance(shutdown.parts.engine, FakeEngine)
    shutdown.parts.engine.close = close  # type: ignore[method-assign]
    await stop(shutdown)
    assert shutdown.status is ExitStatus.FORCED


async def test_nothing_outside_can_cancel_the_plan(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"engine": 2.0})
    shutdown, _ = build(world)
    with trio.move_on_after(0.1) as outside:
        await stop(shutdown)
        world.note("came back")
        await trio.lowlevel.checkpoint()
    assert outside.cancelled_caught
    assert world.time_of("came back") == pytest.approx(2.3)
    assert shutdown.finished.is_set()


# ---- reasons that come later ----


@pytest.mark.parametrize(
    ("hanging", "when", "migrated"),
    [
        ({"withdraw"}, 0.5, 0.5),  # phase 1: withdrawal goes on beside
        ({"idle"}, 1.25, 1.25),  # phase 2
        ({"idle", "ended"}, 5.5, 5.0),  # phase 3: too late to change anything
        ({"served"}, 1.5, 0.3),
        ({"engine"}, 3.0, 0.3),
    ],
)
async def test_second_signal_in_each_phase(
    hanging: set[str],
    when: float,
    migrated: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(hangs=hanging, leave_s=0.1)
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        if "idle" in hanging:
            nursery.start_soon(requests.request, 1000.0)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(stop, shutdown)
        await trio.sleep(when)
        shutdown.hurry()
        await shutdown.finished.wait()
    assert world.time_of("migrate") == pytest.approx(migrated)
    assert shutdown.view().hurried
    if hanging == {"idle"}:
        assert outcomes(shutdown)["drain"] == "hurried"
        assert shutdown.status is ExitStatus.ASKED
        assert world.now() == pytest.approx(1.25 + 0.1)


async def test_hurried_withdrawal_still_has_its_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(hangs={"withdraw"})
    shutdown, _ = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop, shutdown)
        await trio.sleep(0.5)
        shutdown.hurry()
    assert seconds_of(shutdown)["withdraw"] == pytest.approx(2.0)
    assert world.time_of("shutdown") == pytest.approx(2.0)
    assert shutdown.status is ExitStatus.FAILED


@pytest.mark.parametrize(
    "reason", [StopReason.ENGINE_DEAD, StopReason.LEASE_LOST, StopReason.INTERNAL_ERROR]
)
async def test_trouble_during_the_drain_ends_it(
    reason: StopReason, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(leave_s=0.1)
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(stop, shutdown)
        await trio.sleep(2.0)
        shutdown.request(reason, "seen by its watcher")
    assert world.time_of("migrate") == pytest.approx(2.0)
    assert shutdown.reason is StopReason.SIGNAL
    assert shutdown.status is ExitStatus.FAILED
    assert f"While stopping: {reason.value} (seen by its watcher)" in caplog.text


@pytest.mark.parametrize(
    ("reason", "hanging"),
    [
        (StopReason.ENGINE_DEAD, "engine"),
        (StopReason.LEASE_LOST, "served"),
        (StopReason.STARTUP_FAILED, "withdraw"),
        (StopReason.SIGNAL, "withdraw"),
    ],
)
async def test_what_the_plan_itself_brings_about_is_no_alarm(
    reason: StopReason, hanging: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(takes={hanging: 1.5})
    shutdown, _ = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop, shutdown)
        await trio.sleep(1.0)
        shutdown.request(reason)
    assert shutdown.status is ExitStatus.ASKED
    assert not shutdown.view().hurried


async def test_engine_death_while_endpoints_stop_is_an_alarm(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(takes={"served": 1.5})
    shutdown, _ = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop, shutdown)
        await trio.sleep(1.0)
        shutdown.request(StopReason.ENGINE_DEAD)
    assert shutdown.status is ExitStatus.FAILED


@pytest.mark.parametrize(
    "failure",
    [
        StopReason.ENGINE_DEAD,
        StopReason.LEASE_LOST,
        StopReason.STARTUP_FAILED,
        StopReason.INTERNAL_ERROR,
    ],
)
async def test_a_failure_never_becomes_zero_by_a_later_signal(
    failure: StopReason, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(takes={"engine": 1.0})
    shutdown, _ = build(world)
    shutdown.request(failure)
    shutdown.request(StopReason.SIGNAL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shutdown.run)
        await trio.sleep(0.5)
        shutdown.request(StopReason.SIGNAL)
        shutdown.hurry()
    assert shutdown.reason is failure
    assert shutdown.status is ExitStatus.FAILED


async def test_the_worst_status_stays(autojump_clock: trio.testing.MockClock) -> None:
    world = World(hangs={"engine"}, raises={"manager tasks": RuntimeError("later, and milder")})
    shutdown, _ = build(world)
    await stop(shutdown, StopReason.ENGINE_DEAD)
    assert shutdown.status is ExitStatus.FORCED


async def test_start_up_that_was_stopped_fails_as_a_consequence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    shutdown, _ = build(world)
    shutdown.request(StopReason.STARTUP_STOPPED)
    shutdown.request(StopReason.STARTUP_FAILED, "the engine's constructor raised")
    shutdown.request(StopReason.ENGINE_DEAD, "its children were killed")
    await shutdown.run()
    assert world.order == ["latch"]
    assert shutdown.status is ExitStatus.ASKED


# ---- what is said, what can be seen ----


async def test_log_lines_that_operators_grep(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = World(leave_s=0.1)
    shutdown, requests = build(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        nursery.start_soon(requests.request, 2.5)
        await trio.testing.wait_all_tasks_blocked()
        await stop(shutdown)
    shutdown.run_deferred([], 15)
    assert [record.getMessage() for record in caplog.records] == [
        "Shutdown: asked to stop; 30.0 s in all",
        "Received shutdown signal; unregistering endpoints from discovery",
        "Shutdown phase 1 (withdraw) took 0.00 s: done",
        "Grace period 5.00s before stopping endpoints",
        "draining: 2 requests, 4 s left",
        "draining: 2 requests, 3 s left",
        "draining: 1 requests, 2 s left",
        "draining: 1 requests, 1 s left",
        "Shutdown phase 2 (drain) took 5.00 s: grace over",
        "Shutdown phase 3 (migrate) took 0.10 s: done",
        "Initiating runtime shutdown",
        "Shutdown phase 4 (stop) took 0.00 s: done",
        "Shutdown phase 5 (engine) took 0.00 s: done",
        "Shutdown phase 6 (deferred) took 0.00 s: done",
        "Shutdown phase 7 (exit) took 0.00 s: done",
        "Shutdown took 5.10 s, exit status 0: withdraw 0.00, drain 5.00, migrate 0.10, "
        "stop 0.00, engine 0.00, deferred 0.00, exit 0.00",
        "Running deferred handlers",
    ]


@pytest.mark.parametrize("reason", list(StopReason))
async def test_a_failure_is_told_as_an_error_with_its_cause(
    reason: StopReason, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shutdown = Shutdown(BOUNDS)
    shutdown.request(reason, "port 1 is taken")
    await shutdown.run()
    failed = reason not in ASKED_REASONS
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == (
        [f"Shutdown: {reason.value} (port 1 is taken); 30.0 s in all"] if failed else []
    )


async def test_the_view_while_draining(autojump_clock: trio.testing.MockClock) -> None:
    world = World(takes={"withdraw": 0.25}, leave_s=0.1)
    shutdown, requests = build(world)
    assert shutdown.view().reason is None
    assert shutdown.view().seconds_left is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.request, 1000.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(stop, shutdown)
        await trio.sleep(1.25)
        view = shutdown.view()
        shutdown.hurry()
    assert view.reason == "asked to stop"
    assert view.active == {"drain": pytest.approx(1.0)}
    assert view.seconds_left == pytest.approx(28.75)
    assert [(record.phase, record.outcome) for record in view.phases] == [(Phase.WITHDRAW, "done")]
    assert not view.hurried
    assert view.status == 0
    # A view is a picture: what happens later is not in it.
    assert len(view.phases) == 1
    assert shutdown.view().active == {}


async def test_requested_tells_whoever_carries_the_plan_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shutdown = Shutdown(BOUNDS)
    async with trio.open_nursery() as nursery:

        async def carry_out() -> None:
            await shutdown.requested.wait()
            await shutdown.run()

        nursery.start_soon(carry_out)
        await trio.testing.wait_all_tasks_blocked()
        assert not shutdown.finished.is_set()
        shutdown.request(StopReason.SIGNAL)
    assert shutdown.finished.is_set()


# ---- deferred handlers ----


async def test_deferred_handlers_of_the_signal_run_once_each_and_may_fail(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def broken() -> None:
        called.append("broken")
        raise RuntimeError("broken")

    async def wants_a_loop() -> None:
        raise AssertionError

    recorded = [
        (3, called.append, ("SIGQUIT",)),
        (15, broken, ()),
        (15, called.append, ("SIGTERM",)),
        (15, wants_a_loop, ()),
        (2, called.append, ("SIGINT",)),
    ]
    shutdown = Shutdown(BOUNDS)
    await stop(shutdown)
    shutdown.run_deferred(recorded, 15)
    assert called == ["broken", "SIGTERM"]
    assert caplog.text.count("Deferred signal callback failed") == 1
    assert "Deferred signal callback needs a loop, not run" in caplog.text


@pytest.mark.parametrize("reason", [StopReason.ENGINE_DEAD, StopReason.STARTUP_FAILED])
async def test_deferred_handlers_need_a_signal(
    reason: StopReason, autojump_clock: trio.testing.MockClock
) -> None:
    called: list[object] = []
    shutdown = Shutdown(BOUNDS)
    await stop(shutdown, reason)
    shutdown.run_deferred([(15, called.append, (1,))], 15)
    assert called == []


# ---- leaving: real processes ----


def run_child(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, timeout=30
    )


def test_leave_flushes_tidies_and_keeps_the_status() -> None:
    child = run_child(
        """
        import atexit, logging, logging.handlers, sys, threading, time
        from trio_worker.shutdown import leave

        memory = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stderr))
        logging.getLogger().addHandler(memory)
        logging.getLogger().error("kept in memory")
        print("not flushed yet", end="")
        atexit.register(print, "interpreter teardown")
        # Not a daemon: returning from main would wait for it.
        threading.Thread(target=time.sleep, args=(60,)).start()

        def broken():
            raise OSError("gone already")

        leave(1, tidy=[broken, lambda: print(", tidied", end="")], kill=lambda: [])
        """
    )
    assert child.returncode == 1
    assert child.stdout == "not flushed yet, tidied"
    assert "kept in memory" in child.stderr
    assert "Not tidied up" in child.stderr


def test_leave_reports_children_that_survive() -> None:
    child = run_child(
        """
        from trio_worker.shutdown import leave
        leave(0, kill=lambda: [4711])
        """
    )
    assert child.returncode == 70
    assert "Killed, but not gone in time: [4711]" in child.stderr


def test_leave_kills_what_is_left() -> None:
    child = run_child(
        """
        import subprocess, sys
        from trio_worker.shutdown import leave
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(process.pid, flush=True)
        leave(0)
        """
    )
    assert child.returncode == 0
    # Gone, or a zombie that PID 1 has not reaped: either way it runs no more.
    pid = int(child.stdout)
    try:
        with open(f"/proc/{pid}/stat") as stat:
            assert stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        pass


def test_leave_removes_temporary_directories() -> None:
    child = run_child(
        """
        import tempfile
        from trio_worker.shutdown import leave
        folder = tempfile.TemporaryDirectory()
        print(folder.name)
        leave(0, kill=lambda: [])
        """
    )
    assert child.returncode == 0
    assert child.stderr == ""
    assert not Path(child.stdout.strip()).exists()


def test_leave_does_not_wait_for_a_handler_that_is_stuck() -> None:
    child = run_child(
        """
        import logging, time
        from trio_worker.shutdown import leave

        class Stuck(logging.Handler):
            def flush(self):
                time.sleep(60)

        logging.getLogger().addHandler(Stuck())
        leave(0, kill=lambda: [])
        """
    )
    assert child.returncode == 0
