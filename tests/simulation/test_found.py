# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What random cases have shown to be wrong once, as small cases of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.script import (
    FINISH_LENGTH,
    EngineScript,
    Hold,
    Output,
    Retract,
    finish_error,
    tokens,
)

from . import garbage, run
from .case import Act, Case, Consumer, Request, Upload
from .invariants import violations
from .play import play
from .record import Record

REFUSED = finish_error(400, "BadRequestError", "scripted: refused")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with run.warm():
        yield


def judge(*requests: Request, acts: tuple[Act, ...] = (), **knobs: Any) -> Record:
    """Run a case under several orders of its tasks; the last record, if none violates anything."""
    for seed in range(8):
        record = play(Case(seed, requests, acts, **knobs), search=garbage.ours)
        assert violations(record) == []
    return record


def shutdown(at: float) -> Act:
    return Act("shutdown", at=at, flavour="trio")


@pytest.mark.parametrize("order_is_proven", [True, False])
def test_an_abort_that_waits_for_dispatch_is_sent(order_is_proven: bool) -> None:
    """It ran in the empty context of the call from Rust, where no socket can send."""
    record = judge(
        Request(EngineScript(tokenize_delay=0.5, outputs=tokens(50))),
        acts=(Act("stop", at=0.1),),
        order_is_proven=order_is_proven,
    )
    assert [entry.time for entry in record.journal.of("abort matched")] == [0.5]


def test_rule_111_a_request_that_comes_to_a_closed_nursery_is_refused() -> None:
    """ "Nursery is closed to new arrivals" came out, and a live request stayed behind."""
    record = judge(
        Request(EngineScript()),
        Request(EngineScript(), arrives=2.0),
        acts=(shutdown(1.0),),
        crash=True,
    )
    assert record.requests[1].error == "EngineShutdown"


@pytest.mark.parametrize("arm", ["push", "pull"])
def test_rule_131_a_cancelled_facade_waits_for_its_request(arm: Any) -> None:
    """A pull did not."""
    record = judge(
        Request(EngineScript(outputs=tokens(50), resists_cancel_for=0.02), arm=arm),
        acts=(Act("cancel owner", at=0.25),),
    )
    assert record.requests[0].ended.time == pytest.approx(0.27)


def test_a_request_that_is_stopped_before_its_first_step_ends_at_once() -> None:
    """It waited for its drain deadline, and its planning was never awaited."""
    record = judge(Request(EngineScript(), arrives=1.0), acts=(Act("stop", at=0.5),))
    assert record.requests[0].ended.time < 1.1


@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("crash", [False, True])
def test_rule_129_the_end_of_a_finished_stream_is_sent_in_a_shutdown(arm: Any, crash: bool) -> None:
    """The shutdown came after the last final response and before the end of the stream."""
    for hops in range(8):
        act = Act("shutdown", on=("chunk", 2), hops=hops, flavour="trio")
        request = Request(EngineScript(outputs=tokens(1)), n=2, arm=arm)
        judge(request, acts=(act,), crash=crash, batch_callbacks=1)


@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("crash", [False, True])
def test_rule_129_a_client_left_before_its_last_responses_and_then_came_a_shutdown(
    arm: Any, crash: bool
) -> None:
    """It fetched all of them, and an EngineShutdown behind them."""
    outputs = (Output(0.25, finish=FINISH_LENGTH, messages=3),)
    request = Request(EngineScript(outputs=outputs), arm=arm, consumer=Consumer(every=0.1, depth=2))
    record = judge(
        request, acts=(Act("stop", on=("chunk", 1)), shutdown(0.3)), in_place_frames=1, crash=crash
    )
    if arm == "pull":
        assert record.requests[0].error is None


def test_rule_129_a_batch_is_complete_with_its_last_prompt() -> None:
    """It was taken for complete after the first one."""
    script = EngineScript(outputs=tokens(3), choice_delays=(0.0, 5.0))
    record = judge(Request(script, mode="native", batch=2), acts=(shutdown(1.0),))
    assert record.requests[0].error == "EngineShutdown"


@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("tap", [True, False])
def test_what_waits_for_a_slow_consumer_is_bounded(arm: Any, tap: bool) -> None:
    """Chunks of later ticks went on being delivered in place."""
    record = judge(
        Request(
            EngineScript(outputs=tokens(60)),
            arm=arm,
            consumer=Consumer(stalls_after=1, stalls_until=10.0, depth=1),
        ),
        tap=tap,
        merge_at=4,
        in_place_frames=0,
        backlog_frames=2,
    )
    assert record.requests[0].most_responses <= 4


@pytest.mark.parametrize("tap", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_rule_121_an_error_of_the_engine_does_not_swallow_what_waits(tap: bool, n: int) -> None:
    """The last output was merged with the waiting ones, and its error took them with it."""
    outputs = (*[Output(0.1)] * 10, Output(0.1, finish=REFUSED))
    judge(
        Request(
            EngineScript(outputs=outputs),
            n=n,
            arm="pull",
            consumer=Consumer(stalls_after=0, stalls_until=5.0),
        ),
        tap=tap,
        merge_at=4,
    )


@pytest.mark.parametrize("tap", [True, False])
def test_rule_121_a_broken_stream_does_not_swallow_what_waits(tap: bool) -> None:
    judge(
        Request(
            EngineScript(outputs=(*[Output(0.1)] * 20, Hold()), breakable=True),
            arm="pull",
            consumer=Consumer(stalls_after=1, stalls_until=5.0),
        ),
        acts=(Act("break streams", at=1.05),),
        tap=tap,
    )


@pytest.mark.parametrize("arm", ["push", "pull"])
def test_rule_055_a_failed_upload_leaves_no_cycle(arm: Any) -> None:
    """The bridge's frames hold their task, and the task the error."""
    judge(Request(EngineScript(), arm=arm, upload=Upload(fails=True)))


def test_rule_055_an_error_that_nobody_takes_leaves_no_cycle() -> None:
    """The consumer had dropped the stream, and the outcome waited for it."""
    outputs = (Output(0.1), Output(0.1, finish=REFUSED))
    judge(
        Request(
            EngineScript(outputs=outputs, resists_cancel_for=0.02),
            arm="pull",
            consumer=Consumer(every=0.1, leaves_after=1, leaves_how="drop"),
        ),
    )


@pytest.mark.parametrize("arm", ["push", "pull"])
def test_rule_053_a_prefill_tells_nothing_to_a_client_that_has_stopped(arm: Any) -> None:
    """The context was stopped, and its future had not been told of yet."""
    stop = Act("stop", on=("request", 1), flavour="direct")
    request = Request(EngineScript(outputs=tokens(1)), arm=arm, planning_seconds=0.1)
    judge(request, acts=(stop,), role="prefill")
    at_the_end = Act("stop", on=("output", 1), flavour="direct")
    for hops in range(6):
        judge(request, acts=(replace(at_the_end, hops=hops),), role="prefill")
        later = replace(at_the_end, at=0.1, on=None, hops=hops, flavour="asyncio")
        record = judge(request, acts=(later,), role="prefill", batch_callbacks=1)
        assert not any(got.after_stop for got in record.requests[0].got)


def test_rule_119_an_abort_echo_repeats_nothing() -> None:
    outputs = (*[Output(0.1)] * 3, Retract(0.1, queued=5.0), Output(0.1, finish=FINISH_LENGTH))
    record = judge(
        Request(EngineScript(outputs=outputs)),
        acts=(Act("abort all", at=1.0, flavour="trio"),),
    )
    assert [token for got in record.requests[0].got for token in got.ids] == [100, 101, 102]
