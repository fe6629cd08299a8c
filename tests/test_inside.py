# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.inside, trio_worker.metrics: what is told of 500 requests, and what that costs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
from prometheus_client import CollectorRegistry, generate_latest

from compat.egress import PullEgress
from compat.feeders import Feeder, Feeders
from compat.loop import open_loop
from compat.senders import Senders
from compat.tap import Flight
from tests.fakes.context import FakeContext
from tests.fakes.journal import Journal
from trio_worker import inside, metrics
from trio_worker.cli import WorkerOptions
from trio_worker.garbage import Garbage
from trio_worker.instruments import Instruments
from trio_worker.recorder import black_box
from trio_worker.requests.abort import Aborts
from trio_worker.requests.live import LiveRequests
from trio_worker.responses import coalesce, coalesced
from trio_worker.shutdown import Bounds, Shutdown, StopReason
from trio_worker.worker import Worker

SIGNALS: Any = SimpleNamespace(before_leaving=None, stage="starting", doing=lambda _what: None)


async def hold_open(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


@asynccontextmanager
async def worker() -> AsyncIterator[Worker]:
    """Trio. A worker's data around an engine that is not there."""
    manager = SimpleNamespace(rid_to_state={})
    config = SimpleNamespace(server_args=SimpleNamespace(served_model_name="fake-model"))
    async with open_loop() as loop, trio.open_nursery() as tree:
        serving = await tree.start(hold_open, name="serving")
        aborting = await tree.start(hold_open, name="aborts")
        instruments = Instruments(SIGNALS, WorkerOptions(), config)
        requests = LiveRequests(
            loop=loop,
            serving=serving,
            feeders=Feeders(loop),
            aborts=Aborts(manager, aborting, order_is_proven=True),
            tokenizer_manager=manager,
            recorder=instruments.recorder,
        )
        shown = Shown(
            loop=loop,
            config=config,
            options=WorkerOptions(),
            runtime=cast(Any, None),
            engine=cast(Any, SimpleNamespace(tokenizer_manager=manager, statistics=dict)),
            services=cast(Any, None),
            serving=cast(Any, None),
            requests=requests,
            senders=Senders(),
            shutdown=Shutdown(Bounds(total=30.0, grace=5.0)),
            garbage=Garbage("off", lambda: requests.count),
            instruments=instruments,
        )
        yield shown
        serving.cancel_scope.cancel()
        await requests.wait_all_ended()
        tree.cancel_scope.cancel()


class Shown(Worker):
    """Its configuration is not Dynamo's."""

    @property
    def role(self) -> str:
        return "fake role"


async def admit(shown: Worker, count: int) -> None:
    """Trio. So many requests that are being planned, for ever."""
    journal = Journal()
    journal.open()

    async def plan() -> Any:
        await asyncio.Event().wait()

    async def in_asyncio() -> None:
        for number in range(count):
            shown.requests.admit(FakeContext(journal, f"context-{number}"), PullEgress(), plan)

    task = shown.loop.create_task(in_asyncio())
    await Feeder(task).wait_ended()
    task.result()


async def test_a_request_by_its_figures(autojump_clock: MockClock) -> None:
    async with worker() as shown:
        await admit(shown, 1)
        await trio.sleep(2.0)
        (request,) = shown.requests
        request.accepted = 7
        assert inside.view(shown)["requests"] == [
            {
                "rid": None,
                "context": "context-0",
                "role": "fake role",
                "phase": "planning",
                "age_s": 2.0,
                "accepted": 7,
                "tokens": 0,
                "backlog": 0,
                "stuck_s": 0.0,
                "deadline_in_s": None,
            }
        ]
        request.scope.deadline = trio.current_time() + 0.5
        assert inside.view(shown)["requests"][0]["deadline_in_s"] == 0.5


async def test_500_requests_are_told_at_little_cost() -> None:
    async with worker() as shown:
        await admit(shown, 500)
        began = time.thread_time()
        seen = inside.view(shown)
        told = json.dumps(seen)
        spent = time.thread_time() - began
        assert len(seen["requests"]) == 500
        assert [one["context"] for one in seen["requests"][:2]] == ["context-0", "context-1"]
        # One line for all of them, in the tree and among asyncio's tasks.
        assert '"trio_worker.requests.request.Request.run", "times": 500' in told
        assert seen["asyncio_tasks"]["Request._feed"] == 500
        assert spent < 0.1  # processor seconds; some 5 ms on a machine of its own


async def test_more_than_that_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "MAX_REQUESTS", 3)
    async with worker() as shown:
        await admit(shown, 5)
        seen = inside.view(shown)
        assert len(seen["requests"]) == 3
        assert seen["requests_left_out"] == 2
        assert seen["counts"]["live"] == 5


async def test_stacks_are_told_when_asked_for() -> None:
    async with worker() as shown:
        await admit(shown, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert '"stack"' not in json.dumps(inside.view(shown))
        seen = inside.view(shown, stacks=True)
        feeds = [one for one in seen["asyncio_stacks"] if one["task"] == "Request._feed"]
        assert len(feeds) == 2
        assert feeds[0]["stack"][0].startswith("trio_worker.requests.request.Request._feed:")
        assert any(one["task"] == "MainThread" for one in seen["thread_stacks"])


async def resist(ended: asyncio.Event) -> None:
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError:
            continue


async def test_feeders_adrift_and_pending_aborts(autojump_clock: MockClock) -> None:
    async with worker() as shown:
        ended = asyncio.Event()
        feeder = shown.requests.feeders.start(resist(ended))
        shown.requests.feeders.detach(feeder, "context-x")
        shown.requests.aborts.order(Flight("rid-y", None), "context-y", lambda _end: None)
        await trio.sleep(1.5)
        seen = inside.view(shown)
        assert seen["feeders"]["adrift"] == [{"context": "context-x", "age_s": 1.5}]
        assert seen["aborts"]["pending"] == [
            {"rid": "rid-y", "context": "context-y", "waits_for": "dispatch", "age_s": 1.5}
        ]
        assert sample(shown, "feeders_adrift") == 1
        assert sample(shown, "aborts_pending") == 1
        ended.set()
        await feeder.wait_ended()
        await trio.sleep(60)
        seen = inside.view(shown)
        assert (seen["feeders"]["adrift"], seen["aborts"]["pending"]) == ([], [])
        assert seen["feeders"]["detached"] == 1


async def test_the_plan_with_the_time_that_is_left(autojump_clock: MockClock) -> None:
    async with worker() as shown:
        assert inside.view(shown)["shutdown"]["reason"] is None
        shown.shutdown.request(StopReason.SIGNAL)
        await trio.sleep(4.0)
        seen = inside.view(shown)["shutdown"]
        assert seen["reason"] == "asked to stop"
        assert seen["seconds_left"] == 26.0


async def test_text_for_a_person() -> None:
    async with worker() as shown:
        await admit(shown, 2)
        text = inside.text(shown)
        assert "worker tree:" in text
        assert "trio_worker.requests.request.Request.run, 2 times" in text
        assert text.count(" planning age ") == 2
        assert "starting: building; tree so far:" in inside.early_text("starting: building")


async def test_a_worker_that_fails_leaves_its_flight_recorder(tmp_path: Path) -> None:
    async with worker() as shown:
        instruments = shown.instruments
        instruments.black_box = dataclasses.replace(instruments.black_box, folder=tmp_path / "f")
        await admit(shown, 1)
        instruments.end(0)
        assert not (tmp_path / "f").exists()
        instruments.end(1)
        (file,) = (tmp_path / "f").iterdir()
        trace = json.loads(file.read_text())
        assert trace["otherData"]["reason"] == "exit status 1"
        assert any(entry["args"].get("context") == "context-0" for entry in trace["traceEvents"])
        SIGNALS.before_leaving()
        assert len(list((tmp_path / "f").iterdir())) == 2


async def test_a_folder_that_cannot_be_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with worker() as shown:
        box = dataclasses.replace(shown.instruments.black_box, folder=tmp_path / "file" / "f")
        assert box.write("test") is None


async def test_an_answer_over_http_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "MAX_SENT", 2)
    async with worker() as shown:
        await admit(shown, 5)
        task = shown.loop.create_task(shown.instruments.black_box.answer({}))
        await Feeder(cast(Any, task)).wait_ended()
        trace = task.result()
        assert sum(entry["name"] == "request" for entry in trace["traceEvents"]) == 2
        assert not trace["otherData"]["complete"]


# ---- metrics ----


def sample(shown: Worker, name: str, **labels: str) -> float:
    """One figure, as a scrape finds it."""
    registry = CollectorRegistry()
    registry.register(metrics.collector_of(shown))
    value = registry.get_sample_value(f"dynamo_component_{name}", labels)
    assert value is not None, name
    return value


async def test_every_metric_is_in_a_scrape() -> None:
    async with worker() as shown:
        shown.shutdown.request(StopReason.SIGNAL)
        shown.shutdown._enter(next(iter(shown.shutdown._path)))
        registry = CollectorRegistry()
        registry.register(metrics.collector_of(shown))
        text = generate_latest(registry).decode()
        for metric in metrics.METRICS:
            assert f"# TYPE {metric.full_name} {metric.kind}\n" in text
            label = f'{metric.label}="' if metric.label else ""
            assert any(
                line.startswith(metric.full_name) and label in line for line in text.splitlines()
            )


def test_names_differ_in_more_than_their_ending() -> None:
    names = [metric.name.removesuffix("_total") for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == (metric.unit == "seconds")


async def test_figures_are_those_of_the_worker() -> None:
    async with worker() as shown:
        await admit(shown, 3)
        assert sample(shown, "live_requests", state="planning") == 3
        assert sample(shown, "live_requests", state="draining") == 0
        shown.requests.aborts.counts.sent = 5
        assert sample(shown, "aborts_total", outcome="sent") == 5
        shown.requests.drains_ended = 2
        assert sample(shown, "drains_total", outcome="ended") == 2
        shown.instruments.lag.delays.observe(0.02)
        assert sample(shown, "event_loop_delay_seconds_bucket", le="0.025") == 1
        assert sample(shown, "event_loop_delay_seconds_bucket", le="0.01") == 0
        assert sample(shown, "event_loop_delay_seconds_sum") == 0.02


async def test_a_scrape_may_come_from_any_thread() -> None:
    async with worker() as shown:
        await admit(shown, 1)
        shown.shutdown.request(StopReason.SIGNAL)
        shown.shutdown._enter(shown.shutdown._path[0])
        assert (
            await trio.to_thread.run_sync(
                lambda: sample(shown, "shutdown_phase_seconds", phase="withdraw")
            )
            >= 0
        )


def test_merged_chunks_are_counted() -> None:
    chunk = {"output_ids": [1], "meta_info": {"finish_reason": None}}
    before = coalesced()
    coalesce([chunk])
    assert coalesced() == before
    coalesce([chunk, chunk, chunk])
    assert coalesced() == before + 2


async def test_lag_counts_late_turns(autojump_clock: MockClock) -> None:
    async with worker() as shown:
        with trio.move_on_after(10.05):
            await shown.instruments.lag.watch()
        assert shown.instruments.lag.delays.cumulative()[-1] == ("+Inf", 100)
