# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A gateway's leader and its children, without processes (those: tests/test_children.py, e2e)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from compat.permanent_thread import PermanentThread
from trio_worker.branch import open_branch
from trio_worker.children import Children
from trio_worker.errors import StartupExit
from trio_worker.roles import gateway
from trio_worker.roles.gateway import AttachedEngine, GatewayChildRole, GatewayLeaderRole
from trio_worker.shutdown import Bounds, Shutdown, StopReason

ENV = "DYN_SGLANG_GATEWAY_"


class FakeChild:
    """Exits by itself, after some seconds, with a status."""

    def __init__(self, seconds: float, status: int | None) -> None:
        self.seconds = seconds
        self.status = status
        self.pid = 77


class FakeChildren(Children):
    """Starts nothing; notes what it would have started."""

    started: list[tuple[list[str], dict[str, str]]]

    def __init__(self, child: FakeChild | None = None) -> None:
        super().__init__()
        self.started = []
        self.child: Any = child or FakeChild(float("inf"), None)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Any:
        self.started.append((list(command), dict(environment)))
        return self.child

    async def look_after(self, child: Any) -> int | None:
        await trio.sleep(child.seconds)
        status: int | None = child.status
        return status


async def look_after(child: FakeChild, shutdown: Shutdown) -> None:
    children = FakeChildren(child)
    await gateway._look_after(shutdown, children, children.child)


# ---- a child that goes ----


@pytest.mark.parametrize(("status", "noticed_after"), [(1, 5.0), (-9, 5.0), (0, 6.0)])
async def test_a_child_that_goes_unasked_ends_the_gateway(
    status: int, noticed_after: float, autojump_clock: trio.testing.MockClock
) -> None:
    shutdown = Shutdown(Bounds())
    began = trio.current_time()
    await look_after(FakeChild(5.0, status), shutdown)
    assert trio.current_time() - began == pytest.approx(noticed_after)
    assert shutdown.reason is StopReason.CHILD_DIED
    assert shutdown.detail == f"gateway child pid=77 exited rc={status}"
    assert shutdown.status == 1


async def test_a_child_may_hear_a_signal_to_the_group_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shutdown = Shutdown(Bounds())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_after, FakeChild(5.0, 0), shutdown)
        await trio.sleep(5.9)
        shutdown.request(StopReason.SIGNAL)
    assert shutdown.reason is StopReason.SIGNAL
    assert shutdown.status == 0


async def test_a_child_that_goes_because_it_was_told_is_no_news(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shutdown = Shutdown(Bounds())
    shutdown.request(StopReason.SIGNAL)
    await look_after(FakeChild(5.0, 1), shutdown)
    # The plan counts its failure; there is no second reason.
    assert shutdown.reason is StopReason.SIGNAL
    assert shutdown.status == 0


# ---- the leader ----


def worker_of(shutdown: Shutdown, services: Any, serving: Any) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(
            server_args=SimpleNamespace(node_rank=0, tokenizer_worker_num=3),
            dynamo_args=SimpleNamespace(gateway_workers=3),
        ),
        engine=SimpleNamespace(load_seconds=12.5),
        shutdown=shutdown,
        services=services,
        serving=serving,
    )


def report(branch: str, error: BaseException) -> None:
    raise AssertionError(f"{branch}: {error!r}")


async def test_a_leader_starts_workers_like_itself(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    children = FakeChildren()
    monkeypatch.setattr(gateway, "Children", lambda: children)
    monkeypatch.setattr(sys, "argv", ["x", "--model-path", "m", "--shutdown-timeout", "30"])
    monkeypatch.setenv("DYN_SYSTEM_PORT", "-1")
    monkeypatch.setenv(f"{ENV}SYSTEM_PORT", "9090")
    shutdown = Shutdown(Bounds(total=30.0))
    async with (
        open_branch("services", report) as services,
        open_branch("serving", report) as serving,
    ):
        await GatewayLeaderRole().serve(worker_of(shutdown, services, serving))
        assert shutdown.parts.children is children
    commands = [command for command, _ in children.started]
    assert commands == 3 * [
        [
            *(sys.executable, "-m", "trio_worker"),
            *("--shutdown-timeout", "30", "--shutdown-timeout=19", "--model-path", "m"),
        ]
    ]
    environments = [environment for _, environment in children.started]
    assert {one[f"{ENV}PARENT_PID"] for one in environments} == {str(os.getpid())}
    assert [one[f"{ENV}CHILD_INDEX"] for one in environments] == ["0", "1", "2"]
    # One scrape target has the configured port; the load is told once.
    assert [one["DYN_SYSTEM_PORT"] for one in environments] == ["9090", "0", "0"]
    assert [one.get(f"{ENV}LOAD_TIME_S") for one in environments] == ["12.5", None, None]


async def test_a_leader_that_is_stopped_starts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    children = FakeChildren()
    monkeypatch.setattr(gateway, "Children", lambda: children)
    shutdown = Shutdown(Bounds())
    async with (
        open_branch("services", report) as services,
        open_branch("serving", report) as serving,
    ):
        with trio.CancelScope() as starting:
            starting.cancel()
            await GatewayLeaderRole().serve(worker_of(shutdown, services, serving))
    assert children.started == []
    assert shutdown.parts.children is None


# ---- a child ----


@pytest.fixture
def _child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ENV}PARENT_PID", str(os.getppid()))


class FakeManager:
    """Notes what would go to the schedulers."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def _dispatch_to_scheduler(self, message: Any) -> None:
        self.sent.append(message)


def attached() -> AttachedEngine:
    engine = SimpleNamespace(
        tokenizer_manager=FakeManager(), get_all_child_pids=list, shutdown=lambda: None
    )
    loop: Any = None
    return AttachedEngine(engine, loop, PermanentThread("test"))


@pytest.mark.usefixtures("_child")
async def test_a_child_that_leaves_lets_the_schedulers_be() -> None:
    engine = attached()
    await engine.end(trio.current_time() + 5)
    assert engine.tokenizer_manager.sent == []


@pytest.mark.usefixtures("_child")
async def test_the_end_of_the_leader_is_the_end_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def wait_process_exit(pid: int) -> None:
        assert pid == os.getppid()
        await trio.sleep(5)

    monkeypatch.setattr(gateway, "wait_process_exit", wait_process_exit)
    engine = attached()
    began = trio.current_time()
    await engine.watch_children()
    assert trio.current_time() - began == pytest.approx(5)
    assert engine.death == f"the gateway's leader is gone (pid={os.getppid()})"


async def test_a_leader_that_is_gone_already(monkeypatch: pytest.MonkeyPatch) -> None:
    # Somebody else's pid may be the one by now.
    monkeypatch.setenv(f"{ENV}PARENT_PID", str(os.getpid()))
    engine = attached()
    await engine.watch_children()
    assert engine.died.is_set()
    monkeypatch.setattr(gateway.ctypes, "CDLL", lambda _name: SimpleNamespace(prctl=print))
    with pytest.raises(StartupExit, match="leader is gone"):
        GatewayChildRole().prepare(None)
