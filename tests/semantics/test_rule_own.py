# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 118-121 and 129-132: rules of our own, which the incumbent does not have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import FINISH_LENGTH, NEVER, EngineScript, Output, Retract, tokens

from .harness import Implementation
from .scenario import (
    MODES,
    Action,
    Leave,
    Request,
    Scenario,
    break_stream,
    cancel_owner,
    one,
    shutdown,
    stop,
)

every_mode = pytest.mark.parametrize("mode", MODES)

THREE_CHOICES = one(EngineScript(outputs=tokens(2)), n=3)


@pytest.mark.fixed("SGLang leaves n-1 states behind, also when the request finished well")
async def test_rule_118_no_state_is_left_of_several_choices(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(THREE_CHOICES)
    assert sorted(seen.ids) == [100, 101, 200, 201, 300, 301]
    assert seen.registry == []


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_118_incumbent_leaks_the_states_that_sglang_leaves(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(THREE_CHOICES)
    rid = seen.submitted_rid
    assert seen.registry == [f"{rid}_1", f"{rid}_2"]


def aborted_while_queued(mode: Any) -> Scenario:
    """Two tokens by 0.2 s, retracted at 0.3 s; at 0.5 s an operator aborts all that runs."""
    script = EngineScript(outputs=(Output(), Output(), Retract(queued=10.0), *tokens(3)))
    return one(script, Action("pause engine", 0.5, argument="abort"), mode=mode)


@pytest.mark.fixed("the echo's last token and whole text are delivered again")
@every_mode
async def test_rule_119_the_echo_of_a_queued_abort_repeats_nothing(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(aborted_while_queued(mode))
    assert seen.ids == [100, 101]
    assert len(seen.requests[0].finish_reasons) == 1
    assert seen.ended == pytest.approx(0.51)


@pytest.mark.only("incumbent", "what the incumbent does instead")
@pytest.mark.parametrize(
    ("mode", "ids"),
    [("tokens", [100, 101, 101]), ("text", [100, 101, 100, 101]), ("native", [100, 101, 101])],
)
async def test_rule_119_incumbent_repeats_tokens(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, ids: list[int]
) -> None:
    seen = await implementation.run(aborted_while_queued(mode))
    assert seen.ids == ids


class Fatal(BaseException):
    """What an ``except Exception`` does not catch."""


@pytest.mark.parametrize("error", [RuntimeError("broken"), Fatal(), asyncio.CancelledError()])
async def test_rule_120_an_error_in_delivery_ends_its_own_request_only(
    implementation: Implementation, autojump_clock: MockClock, error: BaseException
) -> None:
    """It happens inside SGLang's receive loop, which all streams hang on."""
    scenario = Scenario(
        requests=[
            Request(EngineScript(outputs=tokens(5)), first_token_error=error),
            Request(EngineScript(outputs=tokens(5))),
        ]
    )
    seen = await implementation.run(scenario)
    failed, other = seen.requests
    assert failed.error is error
    assert failed.ended == pytest.approx(0.1)
    assert other.ids == [100, 101, 102, 103, 104]
    assert other.error is None
    assert seen.engine_busy == {}


@every_mode
async def test_rule_121_an_error_does_not_overtake_tokens(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """Five outputs come in one tick, at 0.2 s; the stream breaks right behind them."""
    script = EngineScript(outputs=(Output(), Output(messages=5), *NEVER), breakable=True)
    seen = await implementation.run(
        one(script, break_stream(RuntimeError("broken"), 0.2001), mode=mode)
    )
    assert seen.ids == [100, 101, 102, 103, 104, 105]
    assert repr(seen.error) == "RuntimeError('broken')"
    assert seen.events[-1].event != "chunk"


@pytest.mark.only("ours", "the incumbent's SGLang endpoints are on the pull path")
async def test_rule_121_a_handler_returns_after_its_last_frame_and_close(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3))))
    story = [
        entry.event for entry in seen.events if entry.event in ("chunk", "response closed", "ended")
    ]
    assert story == ["chunk"] * 3 + ["response closed", "ended"]


def shut_down_after_the_final_chunk(mode: Any, n: int | None) -> Scenario:
    """The consumer takes the last chunk at 0.2 s and comes back at 0.6 s; shut down at 0.5 s."""
    return one(
        EngineScript(outputs=tokens(2)),
        shutdown(0.5),
        Action("read on", 0.6),
        mode=mode,
        n=n,
        stops_reading_after=2 * (n or 1),
        arm="pull",
    )


@pytest.mark.fixed("a shutdown at the very end makes the frontend run a finished request again")
@every_mode
@pytest.mark.parametrize("n", [None, 2])
async def test_rule_129_a_request_that_is_complete_ends_normally(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, n: int | None
) -> None:
    seen = await implementation.run(shut_down_after_the_final_chunk(mode, n))
    assert seen.requests[0].finish_reasons == ["length"] * (n or 1)
    assert seen.error is None


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_129_incumbent_raises_after_the_final_chunk(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Rule 40 as it stands in the incumbent."""
    seen = await implementation.run(shut_down_after_the_final_chunk("tokens", None))
    assert seen.requests[0].finish_reasons == ["length"]
    assert type(seen.error) is EngineShutdown


async def test_rule_129_one_choice_of_two_is_not_complete(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The first choice finishes at 0.2 s, the second would at 0.7 s; shut down at 0.4 s."""
    script = EngineScript(outputs=tokens(2), choice_delays=(0.0, 0.5))
    seen = await implementation.run(one(script, shutdown(0.4), n=2))
    assert seen.requests[0].finish_reasons == ["length"]
    assert type(seen.error) is EngineShutdown
    assert seen.engine_busy == {}


SILENT_CHOICE = EngineScript(outputs=tokens(50), choice_delays=(0.0, 0.0, 3.0))
"""n = 3: two choices speak from 0.1 s on, the third not before 3 s."""


@pytest.mark.parametrize("how", ["aclose", "drop"])
async def test_rule_130_leaving_aborts_also_the_choice_that_has_not_spoken(
    implementation: Implementation, autojump_clock: MockClock, how: Any
) -> None:
    seen = await implementation.run(one(SILENT_CHOICE, n=3, leave=Leave(2, how), arm="pull"))
    children = {entry.rid for entry in seen.journal.of("dispatched")[1:]}
    assert {rid for time, rid in seen.effective_aborts if time < 0.2} == children
    assert seen.engine_busy == {}


STOPPED_WITH_A_SILENT_CHOICE = one(SILENT_CHOICE, stop(0.25), n=3)


async def test_rule_130_a_stop_aborts_the_silent_choice_at_the_drain_deadline_at_the_latest(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(STOPPED_WITH_A_SILENT_CHOICE)
    children = {entry.rid for entry in seen.journal.of("dispatched")[1:]}
    assert {rid for time, rid in seen.effective_aborts if time <= 1.25} == children
    assert len(seen.effective_aborts) == 3
    assert seen.engine_busy == {}


async def test_rule_131_a_cancelled_owner_waits_until_its_request_has_ended(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """And the request beside it does not notice."""
    script = EngineScript(outputs=tokens(5))
    scenario = Scenario(requests=[Request(script), Request(script)], actions=[cancel_owner(0.25)])
    seen = await implementation.run(scenario)
    cancelled, other = seen.requests
    assert cancelled.owner_cancelled
    assert [time for time, _ in seen.effective_aborts] == [0.25]
    aborted = next(i for i, entry in enumerate(seen.events) if entry.event == "abort matched")
    ended = next(i for i, entry in enumerate(seen.events) if entry.event == "ended")
    assert aborted < ended
    assert other.ids == [100, 101, 102, 103, 104]
    assert other.error is None
    assert seen.leftovers() == {}


async def test_rule_131_a_failing_request_does_not_touch_the_one_beside_it(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    scenario = Scenario(
        requests=[
            Request(EngineScript(outputs=tokens(5), breakable=True)),
            Request(EngineScript(outputs=tokens(5))),
        ],
        actions=[break_stream(RuntimeError("broken"), 0.25)],
    )
    seen = await implementation.run(scenario)
    failed, other = seen.requests
    assert repr(failed.error) == "RuntimeError('broken')"
    assert other.ids == [100, 101, 102, 103, 104]
    assert other.error is None
    assert seen.engine_busy == {}


def one_stalls() -> Scenario:
    """The first consumer stops reading after two chunks, at 0.2 s, and reads on at 5 s."""
    return Scenario(
        requests=[
            Request(EngineScript(outputs=tokens(20)), stops_reading_after=2),
            Request(EngineScript(outputs=tokens(20))),
        ],
        actions=[Action("read on", 5.0)],
        arm="pull",
    )


async def test_rule_132_a_consumer_that_stalls_delays_only_its_own_request(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one_stalls())
    stalled, other = seen.requests
    assert [output.time for output in other.outputs] == pytest.approx(
        [round(0.1 * (i + 1), 6) for i in range(20)]
    )
    assert stalled.ids == other.ids == list(range(100, 120))
    assert stalled.ended == pytest.approx(5.0)


def paused_beside_a_stalled_consumer() -> Scenario:
    """Engine paused with "abort" at 1 s, which waits until SGLang's reader lock is free."""
    return one(
        EngineScript(outputs=(*tokens(3, finish=None)[:-1], Output(finish=FINISH_LENGTH))),
        Action("pause engine", 1.0, argument="abort"),
        Action("read on", 9.0),
        stops_reading_after=2,
        arm="pull",
    )


@pytest.mark.fixed("SGLang's generator, and with it the lock, waits for the next poll")
async def test_rule_132_a_pause_does_not_wait_for_a_consumer(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The engine's last chunk came at 0.4 s; only the consumer is behind."""
    seen = await implementation.run(paused_beside_a_stalled_consumer())
    assert seen.times("pause answered") == [1.0]


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_132_incumbent_keeps_a_pause_waiting(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(paused_beside_a_stalled_consumer())
    (answered,) = seen.times("pause answered")
    assert answered >= 9.0
