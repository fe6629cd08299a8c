# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The metrics publisher's task: patient with errors, joined at the end (C10, C59, B22)."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from compat.loop import open_loop
from trio_worker.branch import open_branch
from trio_worker.roles import llm, non_leader
from trio_worker.roles.llm import PAUSE_FIRST_S, PAUSE_MAX_S, PatientSocket
from trio_worker.roles.non_leader import NonLeaderRole
from trio_worker.shutdown import Bounds, Shutdown, StopReason


class BrokenSocket:
    """Raises `errors` times, at once and without ever suspending; then has a message."""

    def __init__(self, errors: int) -> None:
        self.errors = errors
        self.asked = 0
        self.closed: list[int] = []

    async def recv_pyobj(self) -> str:
        self.asked += 1
        if self.errors:
            self.errors -= 1
            raise OSError("Socket operation on non-socket")
        return "metrics"

    def close(self, linger: int) -> None:
        self.closed.append(linger)


async def test_an_error_that_stays_is_asked_for_less_and_less(
    autojump_clock: trio.testing.MockClock,
) -> None:
    broken = BrokenSocket(errors=1_000_000)
    socket = PatientSocket(broken)

    async def as_the_incumbent_does() -> None:
        while True:
            try:
                await socket.recv_pyobj()
            except OSError:
                continue

    async with open_loop() as loop:
        loop.create_task(as_the_incumbent_does())
        await trio.sleep(3600)
        # 0.1, 0.2, ... 6.4 s, then one every 10 s.
        assert 300 < broken.asked < 400
        # And others have had their turn meanwhile, which is why we are here.
    socket.close(linger=0)
    assert broken.closed == [0]


async def test_what_works_again_is_asked_at_once(autojump_clock: trio.testing.MockClock) -> None:
    broken = BrokenSocket(errors=3)
    socket = PatientSocket(broken)
    waits = []

    async def receive() -> None:
        for _ in range(4):
            began = trio.current_time()
            try:
                assert await socket.recv_pyobj() == "metrics"
            except OSError:
                waits.append(trio.current_time() - began)
        broken.errors = 1
        began = trio.current_time()
        with pytest.raises(OSError, match="non-socket"):
            await socket.recv_pyobj()
        waits.append(trio.current_time() - began)

    async with open_loop() as loop:
        task = loop.create_task(receive())
        done = trio.Event()
        task.add_done_callback(lambda _task: done.set())
        await done.wait()
        task.result()
    first = PAUSE_FIRST_S
    assert waits == pytest.approx([first, 2 * first, 4 * first, first])
    assert 4 * first < PAUSE_MAX_S


@pytest.mark.parametrize("fails", [False, True])
async def test_the_publisher_is_closed_with_the_services(
    fails: bool, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[str] = []
    publisher = SimpleNamespace(cleanup=lambda: events.append("cleanup"))

    async def publish() -> None:
        try:
            await asyncio.sleep(1 if fails else 1000)
        finally:
            events.append("ended")
        raise RuntimeError("no more metrics")

    def report(branch: str, error: BaseException) -> None:
        raise AssertionError(f"{branch}: {error!r}")

    async with open_loop() as loop, open_branch("services", report) as services:
        task = loop.create_task(publish())
        services.start_service(llm._keep_publisher, publisher, task)
        await trio.sleep(5)
        await services.close()
    assert events == ["ended", "cleanup"]
    assert ("Metrics are no longer published: RuntimeError" in caplog.text) == fails


# ---- a node that does not lead ----


class FakePublisher:
    """Notes under whose name KV events are published."""

    def __init__(self) -> None:
        self.generate_endpoint = object()
        self.server_args = SimpleNamespace(node_rank=1, nnodes=2)
        self.dynamo_args: Any = None
        self.kv_worker_id: int | None = None
        self.published_for: list[int | None] = []

    def init_kv_event_publish(self) -> None:
        self.published_for.append(self.kv_worker_id)


@pytest.mark.parametrize("events", [True, False])
async def test_kv_events_of_a_node_go_under_the_names_of_its_leaders(
    events: bool,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    publisher = FakePublisher()

    async def open_publisher(_worker: Any, _generate: Any) -> tuple[Any, Any]:
        return publisher, []

    async def resolve(endpoint: Any, _server_args: Any, expected: int) -> list[int]:
        assert endpoint is publisher.generate_endpoint
        # One for each process of the leader's gateway.
        assert expected == 2
        await asyncio.sleep(60)
        return [11, 12]

    monkeypatch.setattr(non_leader, "open_publisher", open_publisher)
    monkeypatch.setattr(non_leader, "resolve_leader_worker_ids", resolve)
    monkeypatch.setattr(non_leader, "publishes_kv_events", lambda _server_args: True)
    dynamo_args = SimpleNamespace(
        namespace="n", component="c", endpoint="e", use_kv_events=events, gateway_workers=2
    )
    publisher.dynamo_args = dynamo_args
    group_ended = trio.Event()
    shutdown = Shutdown(Bounds())

    def report(branch: str, error: BaseException) -> None:
        raise AssertionError(f"{branch}: {error!r}")

    engine: Any = non_leader.FollowingEngine.__new__(non_leader.FollowingEngine)
    engine.group_ended = group_ended
    async with open_loop(), open_branch("services", report) as services:
        worker: Any = SimpleNamespace(
            runtime=SimpleNamespace(endpoint=lambda _path: object()),
            config=SimpleNamespace(server_args=publisher.server_args, dynamo_args=dynamo_args),
            engine=engine,
            services=services,
            shutdown=shutdown,
        )
        # Does not wait for the leader, whose registration comes when all have loaded.
        began = trio.current_time()
        await NonLeaderRole().serve(worker)
        assert trio.current_time() == began
        await trio.sleep(61)
        assert publisher.published_for == ([11, 12] if events else [])
        assert shutdown.reason is None
        group_ended.set()
        await shutdown.requested.wait()
    assert shutdown.reason is StopReason.GROUP_ENDED
    assert shutdown.status == 0
    assert "Non-leader node detected (node_rank=1). " in caplog.text
