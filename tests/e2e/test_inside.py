# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A running worker seen from inside: tree, metrics, flight recorder, `top`; never what was said."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.served import POLL_S, Served
from trio_worker.quickstart.chat import Answer, get, post
from trio_worker.recorder.picture import draw

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

QUESTION = "Whatever became of the heron?"
TOKENS = 1800
"""Eighteen seconds of them, near the end of the model's context: it is left before."""

SPOKEN = 40
"""Letters of the answer after which a look inside would show them, if it showed any."""

PREFIX = "dynamo_component_"


@asynccontextmanager
async def asking(served: Served) -> AsyncIterator[Answer]:
    """Trio. One stream in flight for the length of the block; its client leaves with it.

    Raises AssertionError should it end before.
    """
    answer = Answer()

    async def ask() -> None:
        await served.ask(QUESTION, max_tokens=TOKENS, answer=answer)
        raise AssertionError(f"ended before its client left: {answer}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while len(answer.text) < SPOKEN:
            await trio.sleep(POLL_S)
        yield answer
        nursery.cancel_scope.cancel()


async def look(served: Served, **body: Any) -> dict[str, Any]:
    """Trio. The engine route ``inside``."""
    answer = await post(served.system_port, "/engine/inside", body)
    assert answer.status == 200, answer.errors
    return dict(answer.body)


def names(node: dict[str, Any]) -> set[str]:
    """Of all tasks in a tree."""
    found = {node.get("task", "")}
    for nursery in node.get("nurseries", ()):
        for child in nursery["tasks"]:
            found |= names(child)
    return found


def written(served: Served) -> list[str]:
    """Lines of the worker's log that name a file of the flight recorder."""
    lines = served.worker.output().splitlines()
    return [line for line in lines if "Flight recorder written to " in line]


def trace_in(path: str) -> Any:
    return json.loads(Path(path).read_text())


async def test_a_stream_in_flight(stand_in: Served) -> None:
    before = await stand_in.metric(f"{PREFIX}aborts_total", outcome="sent")
    async with asking(stand_in) as answer:
        seen = await look(stand_in)
        (request,) = seen["requests"]
        assert request["phase"] == "streaming"
        assert request["rid"]
        assert request["context"]
        assert 0 < request["tokens"] <= TOKENS
        assert request["role"] == seen["worker"]["role"] == "aggregated decode"
        assert seen["worker"]["model"] == stand_in.model
        assert {"serving", "aborts", "services"} <= names(seen["tree"])
        assert "trio_worker.requests.request.Request.run" in names(seen["tree"])
        assert seen["shutdown"]["reason"] is None
        assert await stand_in.metric(f"{PREFIX}live_requests", state="streaming") == 1
        stacks = await look(stand_in, stacks=True)
        told = json.dumps(stacks)
        assert "trio_worker.requests.request.Request._read:" in told
        assert "trio_worker.requests.request.Request._feed:" in told
        # Never prompts or answers: neither in the small view nor in the large one.
        for said in (QUESTION, "heron", answer.text[:20]):
            assert said not in told
    await stand_in.wait_idle()
    assert await stand_in.metric(f"{PREFIX}aborts_total", outcome="sent") == before + 1
    assert await stand_in.metric(f"{PREFIX}live_requests") == 0
    assert await stand_in.metric(f"{PREFIX}event_loop_delay_seconds_count") > 0


async def test_top(stand_in: Served) -> None:
    top = await trio.run_process(
        [sys.executable, "-m", "trio_worker", "top", "--once", str(stand_in.system_port)],
        capture_stdout=True,
    )
    shown = top.stdout.decode()
    assert stand_in.model in shown
    assert f"pid {stand_in.worker.pid}" in shown


async def test_metrics_carry_the_labels_of_the_incumbents(stand_in: Served) -> None:
    _, body = await get(stand_in.system_port, "/metrics")
    (line,) = [
        line for line in body.decode().splitlines() if line.startswith(f"{PREFIX}senders_stuck{{")
    ]
    for label in ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "model"):
        assert f"{label}=" in line


async def test_the_flight_recorder(stand_in: Served) -> None:
    async with asking(stand_in):
        seen = await look(stand_in)
        context = seen["requests"][0]["context"]
    await stand_in.wait_idle()
    sent = await post(stand_in.system_port, "/engine/flight", {})
    assert sent.status == 200
    (whole,) = [
        entry
        for entry in sent.body["traceEvents"]
        if entry["name"] == "request" and entry["args"]["context"] == context
    ]
    assert whole["args"]["ended"] == "client left"
    asked = await post(stand_in.system_port, "/engine/flight", {"file": True})
    trace = trace_in(asked.body["path"])
    assert whole in trace["traceEvents"]
    assert "client left" in draw(trace)
    assert "heron" not in json.dumps(trace)


async def test_sigusr1(stand_in: Served) -> None:
    files = len(written(stand_in))
    stand_in.worker.signal(signal.SIGUSR1)
    while len(written(stand_in)) == files:
        await trio.sleep(POLL_S)
    output = stand_in.worker.output()
    assert "worker tree:" in output
    path = written(stand_in)[-1].partition("written to ")[2].partition(" (")[0]
    assert trace_in(path)["otherData"]["reason"] == "SIGUSR1"
