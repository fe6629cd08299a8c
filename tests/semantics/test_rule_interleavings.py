# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 67-90: what happens when a stop, a shutdown or an error meets each moment of a request."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import pytest
from dynamo.health_check import HEALTH_CHECK_KEY
from dynamo.llm import HttpError
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
from trio.testing import MockClock

from tests.fakes.multimodal import Embeddings
from tests.fakes.script import (
    FINISH_ABORTED,
    FINISH_LENGTH,
    NEVER,
    EngineScript,
    Output,
    finish_error,
    tokens,
)

from .harness import Implementation
from .observation import Observation
from .scenario import (
    CALLER_RID,
    MODES,
    Action,
    break_stream,
    cancel_owner,
    kill,
    one,
    shutdown,
    stop,
)

ABORTED = "Aborted Request ID: dynamo-request"
DETACHED = "Detached SGLang task failed during cancellation"
SIGNAL = "Cancellation or shutdown signal received for SGLang Request ID "
POLL = 0.05
"""Seconds between the incumbent's looks at the registry, at most."""
ENDLESS = EngineScript(outputs=tokens(99))
DEAF = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)

every_mode = pytest.mark.parametrize("mode", MODES)
both_layouts = pytest.mark.parametrize("disaggregated", [False, True])


def assert_one_abort_and_no_output(seen: Observation, *, at: float) -> None:
    assert [time for time, _ in seen.aborts_sent] == pytest.approx([at], abs=POLL)
    assert seen.effective_aborts == seen.aborts_sent
    assert seen.logged_at(ABORTED) == [seen.aborts_sent[0][0]]
    assert seen.items == []
    assert seen.count(DETACHED) == 0
    assert seen.leftovers() == {}


@every_mode
@both_layouts
async def test_rule_067_stopped_before_registration(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, disaggregated: bool
) -> None:
    """Stopped at 0.1 s, registered at 0.3 s, dispatched at 0.4 s."""
    script = EngineScript(registration_delay=0.3, tokenize_delay=0.1, outputs=NEVER)
    seen = await implementation.run(one(script, stop(0.1), mode=mode, disaggregated=disaggregated))
    assert_one_abort_and_no_output(seen, at=0.4)
    assert seen.error is None


@every_mode
async def test_rule_068_stopped_before_registration_which_then_fails(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """Stopped at 0.1 s, refused at 0.3 s: the error is told all the same."""
    script = EngineScript(registration_delay=0.3, registration_error=ValueError("refused"))
    seen = await implementation.run(one(script, stop(0.1), mode=mode))
    assert repr(seen.error) == "ValueError('refused')"
    assert seen.ended == pytest.approx(0.3)
    assert seen.aborts_called == []


@every_mode
async def test_rule_069_stopped_before_dispatch_which_then_fails(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """Stopped at 0.1 s, refused by the tokenizer at 0.3 s."""
    script = EngineScript(tokenize_delay=0.3, dispatch_error=ValueError("too long"))
    seen = await implementation.run(one(script, stop(0.1), mode=mode))
    assert repr(seen.error) == "ValueError('too long')"
    assert seen.ended == pytest.approx(0.3)
    assert seen.aborts_called == []
    assert seen.leftovers() == {}


@every_mode
async def test_rule_070_stopped_before_dispatch_and_the_stream_ends(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """Stopped at 0.1 s, the stream just ends at 0.3 s."""
    script = EngineScript(registration_delay=5.0, breakable=True)
    seen = await implementation.run(one(script, stop(0.1), break_stream(None, 0.3), mode=mode))
    assert seen.items == []
    assert seen.error is None
    assert seen.ended == pytest.approx(0.3)
    assert seen.aborts_called == []


@every_mode
@both_layouts
async def test_rule_071_stopped_after_dispatch_before_the_first_chunk(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, disaggregated: bool
) -> None:
    """Queued until 0.5 s, prefilled until 1 s; stopped at 0.3 s and at 0.7 s."""
    script = EngineScript(queue_delay=0.5, prefill_delay=0.5)
    for moment in (0.3, 0.7):
        seen = await implementation.run(
            one(script, stop(moment), mode=mode, disaggregated=disaggregated)
        )
        assert_one_abort_and_no_output(seen, at=moment)
        assert seen.ended == pytest.approx(moment, abs=0.03)


@every_mode
@both_layouts
async def test_rule_072_stopped_between_chunks(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, disaggregated: bool
) -> None:
    seen = await implementation.run(
        one(ENDLESS, stop(0.25), mode=mode, disaggregated=disaggregated)
    )
    assert seen.effective_aborts == [(0.25, seen.submitted_rid)]
    assert seen.ids == [100, 101]
    assert seen.ended == pytest.approx(0.27)
    assert seen.leftovers() == {}


@every_mode
async def test_rule_073_stopped_after_the_final_chunk(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """The consumer takes the final chunk at 0.2 s and comes back at 0.6 s; stopped at 0.5 s."""
    script = EngineScript(outputs=tokens(2))
    seen = await implementation.run(
        one(
            script,
            stop(0.5),
            Action("read on", 0.6),
            mode=mode,
            stops_reading_after=2,
            arm="pull",
        )
    )
    assert seen.ids == [100, 101]
    assert seen.requests[0].finish_reasons == ["length"]
    assert seen.error is None
    assert seen.aborts_sent == []
    assert seen.leftovers() == {}


async def test_rule_074_stopped_again_in_the_drain(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, at 0.5 s, killed at 0.75 s: the first counts."""
    seen = await implementation.run(one(DEAF, stop(0.25), stop(0.5), kill(0.75)))
    assert seen.ended == pytest.approx(1.25)
    assert [time for time, _ in seen.aborts_sent] == [0.25]
    assert seen.logged_at(SIGNAL) == [0.25]
    assert seen.error is None


async def test_rule_075_shut_down_in_the_drain(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, shut down at 0.4 s; the drain goes on, to the engine's end at 0.75 s."""
    script = EngineScript(outputs=tokens(99), abort_latency=0.5)
    seen = await implementation.run(one(script, stop(0.25), shutdown(0.4)))
    assert seen.ended == pytest.approx(0.75)
    assert type(seen.error) is EngineShutdown
    assert len(seen.effective_aborts) == 1
    assert seen.leftovers() == {}


async def test_rule_076_stopped_after_the_shutdown(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Shut down at 0.1 s, stopped at 0.2 s, dispatched at 0.3 s."""
    script = EngineScript(tokenize_delay=0.3, outputs=NEVER)
    seen = await implementation.run(one(script, shutdown(0.1), stop(0.2)))
    assert type(seen.error) is EngineShutdown
    assert_one_abort_and_no_output(seen, at=0.3)


@every_mode
@both_layouts
async def test_rule_077_shut_down_before_registration(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, disaggregated: bool
) -> None:
    script = EngineScript(registration_delay=0.3, tokenize_delay=0.1, outputs=NEVER)
    seen = await implementation.run(
        one(script, shutdown(0.1), mode=mode, disaggregated=disaggregated)
    )
    assert_one_abort_and_no_output(seen, at=0.4)
    assert type(seen.error) is EngineShutdown
    assert seen.ended == pytest.approx(0.4, abs=POLL)


@every_mode
@both_layouts
async def test_rule_077_shut_down_before_dispatch(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, disaggregated: bool
) -> None:
    script = EngineScript(tokenize_delay=0.3, outputs=NEVER)
    seen = await implementation.run(
        one(script, shutdown(0.1), mode=mode, disaggregated=disaggregated)
    )
    assert_one_abort_and_no_output(seen, at=0.3)
    assert type(seen.error) is EngineShutdown
    assert seen.ended == pytest.approx(0.3, abs=POLL)


@every_mode
@both_layouts
async def test_rule_077_shut_down_before_the_first_chunk(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, disaggregated: bool
) -> None:
    seen = await implementation.run(
        one(
            EngineScript(prefill_delay=0.5),
            shutdown(0.1),
            mode=mode,
            disaggregated=disaggregated,
        )
    )
    assert_one_abort_and_no_output(seen, at=0.1)
    assert type(seen.error) is EngineShutdown
    assert seen.ended == pytest.approx(0.1)


@every_mode
@pytest.mark.parametrize("n", [None, 2])
async def test_rule_078_the_owner_is_cancelled_while_it_waits_for_a_chunk(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, n: int | None
) -> None:
    seen = await implementation.run(one(ENDLESS, cancel_owner(0.25), mode=mode, n=n))
    assert seen.requests[0].owner_cancelled
    assert seen.ended == pytest.approx(0.25, abs=0.051)
    assert [time for time, _ in seen.effective_aborts] == [0.25] * (n or 1)
    assert len({rid for _, rid in seen.effective_aborts}) == (n or 1)
    assert (seen.engine_busy, seen.tasks_left) == ({}, [])


async def test_rule_078_the_owner_is_cancelled_before_dispatch(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """SGLang drops a state that it has not dispatched; nothing is sent, nothing ever runs."""
    seen = await implementation.run(one(EngineScript(tokenize_delay=0.5), cancel_owner(0.1)))
    assert seen.requests[0].owner_cancelled
    assert seen.aborts_sent == []
    assert seen.times("dispatched") == []
    assert seen.leftovers() == {}


@pytest.mark.parametrize("hops", range(0, 16, 3))
async def test_rule_079_the_owner_is_cancelled_while_the_request_is_left(
    implementation: Implementation, autojump_clock: MockClock, hops: int
) -> None:
    """Given up at 1.25 s after a stop; the owner is cancelled in that instant."""
    seen = await implementation.run(
        one(DEAF, stop(0.25), cancel_owner(on=("stream cancelled", 1), hops=hops))
    )
    assert [time for time, _ in seen.aborts_sent] == [0.25]
    assert seen.ended == pytest.approx(1.25, abs=0.051)
    assert seen.tasks_left == []


async def test_rule_080_several_choices_are_aborted_by_their_own_ids(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """n = 3; stopped at 0.25 s; the third choice would first speak at 0.6 s."""
    script = EngineScript(outputs=tokens(99), choice_delays=(0.0, 0.0, 0.5))
    seen = await implementation.run(one(script, stop(0.25), n=3))
    children = {entry.rid for entry in seen.journal.of("dispatched")[1:]}
    assert {rid for _, rid in seen.effective_aborts} == children
    assert len(seen.effective_aborts) == len(children) == 3
    assert seen.error is None
    assert seen.engine_busy == {}


async def test_rule_081_a_batch_is_aborted_by_its_own_ids(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=tokens(99), choice_delays=(0.0, 0.5))
    seen = await implementation.run(one(script, stop(0.25), mode="native", batch=2))
    rid = seen.submitted_rid
    assert sorted(aborted for _, aborted in seen.effective_aborts) == [f"{rid}_0", f"{rid}_1"]
    assert seen.error is None
    assert seen.leftovers() == {}


async def test_rule_082_a_session_is_aborted_by_its_public_id(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.25), mode="native", session=True))
    assert seen.effective_aborts == [(0.25, CALLER_RID)]
    response = seen.items[0]["engine_data"]["sglang_response"]
    assert response["meta_info"]["id"] == CALLER_RID
    assert seen.ids == [100, 101]
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "ours may close the stream at once (rule 18)")
async def test_rule_082_incumbent_waits_for_the_first_response(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(prefill_delay=0.9, outputs=tokens(99))
    seen = await implementation.run(one(script, stop(0.1), mode="native", session=True))
    assert seen.aborts_called[0] == (1.0, CALLER_RID)


PREFILL = EngineScript(prefill_delay=0.4, outputs=(Output(0.1, finish=FINISH_LENGTH),))


def bootstrap_room(seen: Observation) -> Any:
    return seen.items[0]["disaggregated_params"]["bootstrap_room"]


@pytest.mark.parametrize("mode", ["tokens", "native"])
async def test_rule_083_a_prefill_answers_with_bootstrap_then_with_its_cache_hit(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(one(PREFILL, role="prefill", mode=mode))
    first, last = seen.outputs
    assert first.time == 0.0
    assert bootstrap_room(seen) == 17
    assert last.time == pytest.approx(0.5)
    assert last.item == {
        "token_ids": [],
        "engine_data": {"kv_cache_hit": {"prompt_tokens": 3, "reused_tokens": 0}},
    }
    assert seen.aborts_called == []
    assert seen.leftovers() == {}


@pytest.mark.parametrize("mode", ["tokens", "native"])
async def test_rule_083_a_stopped_prefill_is_aborted_and_tells_no_cache_hit(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """In tokenization until 0.2 s, stopped at 0.1 s."""
    script = EngineScript(tokenize_delay=0.2, prefill_delay=5.0)
    seen = await implementation.run(one(script, stop(0.1), role="prefill", mode=mode))
    assert [time for time, _ in seen.effective_aborts] == pytest.approx([0.2], abs=POLL)
    assert len(seen.outputs) == 1
    assert bootstrap_room(seen) == 17
    assert seen.error is None
    assert seen.leftovers() == {}


async def test_rule_083_a_prefill_that_is_shut_down_migrates(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(prefill_delay=5.0)
    seen = await implementation.run(one(script, shutdown(0.1), role="prefill"))
    assert type(seen.error) is EngineShutdown
    assert [time for time, _ in seen.effective_aborts] == [0.1]
    assert len(seen.outputs) == 1
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "ours is pushed: nobody polls it for the second chunk")
async def test_rule_083_incumbent_submits_on_the_second_poll(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        one(PREFILL, Action("read on", 0.5), role="prefill", stops_reading_after=1)
    )
    assert seen.times("registered") == [0.5]


async def test_rule_084_a_prefill_canary_gets_the_engines_raw_chunks(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        one(PREFILL, role="prefill", extra={HEALTH_CHECK_KEY: True}, arm="pull")
    )
    assert len(seen.items) == 1
    assert seen.items[0]["output_ids"] == [100]
    assert seen.items[0]["meta_info"]["finish_reason"]["type"] == "length"
    assert seen.aborts_called == []
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "ours watches every request: a canary must not be pinned (C41)")
async def test_rule_084_incumbent_does_not_watch_a_canary(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        one(PREFILL, stop(0.1), role="prefill", extra={HEALTH_CHECK_KEY: True})
    )
    assert len(seen.items) == 1
    assert seen.aborts_called == []


async def test_rule_085_a_prefill_stopped_as_it_ends_tells_no_cache_hit(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped with the engine's only chunk, at 0.5 s."""
    seen = await implementation.run(one(PREFILL, stop(on=("output", 1)), role="prefill"))
    assert len(seen.outputs) == 1
    assert seen.error is None
    assert seen.effective_aborts == []
    assert seen.engine_busy == {}


async def test_rule_086_a_multimodal_prefill_stopped_early_is_never_submitted(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped while its embeddings are on their way."""
    seen = await implementation.run(
        one(None, stop(0.1), role="multimodal prefill", embeddings=Embeddings(after=0.3))
    )
    assert seen.journal.of("registered") == []
    assert seen.items == []
    assert seen.leftovers() == {}


@pytest.mark.fixed("has no monitor there: a stop reaches the engine when the stream is disposed of")
async def test_rule_087_a_stop_is_noticed_in_a_multimodal_worker(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.35), role="multimodal"))
    assert [time for time, _ in seen.effective_aborts] == [0.35]
    assert len(seen.items) == 3
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "it streams on")
async def test_rule_087_incumbent_streams_on_in_a_multimodal_worker(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.35), role="multimodal"))
    assert seen.aborts_called == []
    assert len(seen.items) == 99


class FailingUpload:
    """A metadata uploader whose storage is gone."""

    async def upload_choice(self, index: int, meta_info: Mapping[str, Any]) -> None:
        raise RuntimeError(f"upload of choice {index} failed")


@pytest.mark.parametrize("mode", ["tokens", "text"])
async def test_rule_088_a_failing_upload_is_raised_and_the_other_choice_aborted(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """n = 2; the first choice finishes at 0.2 s, and with it the upload fails."""
    script = EngineScript(outputs=tokens(2), choice_delays=(0.0, 0.05))
    seen = await implementation.run(one(script, mode=mode, n=2, upload=FailingUpload()))
    assert repr(seen.error) == "RuntimeError('upload of choice 0 failed')"
    second = seen.journal.of("dispatched")[2].rid
    assert seen.aborts_sent == [(0.2, second)]
    assert seen.requests[0].finish_reasons == []
    assert seen.engine_busy == {}


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize(
    ("finish", "expected", "code"),
    [
        (finish_error(400, "BadRequest", "bad grammar"), InvalidArgument, None),
        (finish_error(503, "Unavailable", "queue is full"), HttpError, 503),
        (finish_error(None, "InternalError", "broken"), HttpError, 500),
        (finish_error(200, "Strange", "broken"), HttpError, 500),
        (finish_error(700, "Strange", "broken"), HttpError, 500),
    ],
)
async def test_rule_089_an_error_of_the_engine_is_raised_before_its_chunk_is_sent(
    implementation: Implementation,
    autojump_clock: MockClock,
    mode: Any,
    finish: dict[str, Any],
    expected: type[Exception],
    code: int | None,
) -> None:
    script = EngineScript(outputs=(Output(), Output(finish=finish)))
    seen = await implementation.run(one(script, mode=mode))
    assert type(seen.error) is expected
    assert finish["message"] in str(seen.error)
    if code is not None:
        assert getattr(seen.error, "code", None) == code
    assert seen.ids == [100]
    assert seen.aborts_sent == []
    assert seen.engine_busy == {}


async def test_rule_089_the_message_is_cut(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=(Output(finish=finish_error(400, "BadRequest", "x" * 9000)),))
    seen = await implementation.run(one(script))
    assert str(seen.error) == "x" * 8192


@pytest.mark.parametrize("mode", ["tokens", "text"])
async def test_rule_089_an_abort_without_an_error_is_a_finish(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    script = EngineScript(outputs=(Output(), Output(finish=FINISH_ABORTED)))
    seen = await implementation.run(one(script, mode=mode))
    assert seen.requests[0].finish_reasons == ["cancelled"]
    assert seen.ids == [100, 101]
    assert seen.error is None
    assert seen.leftovers() == {}


async def test_rule_089_native_answers_are_passed_on_as_they_are(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The native API's caller wants SGLang's own error, in SGLang's own form."""
    finish = finish_error(503, "Unavailable", "queue is full")
    script = EngineScript(outputs=(Output(), Output(finish=finish)))
    seen = await implementation.run(one(script, mode="native"))
    response = seen.items[-1]["engine_data"]["sglang_response"]
    assert response["meta_info"]["finish_reason"] == finish
    assert seen.error is None


KILLED_LIKE_STOPPED = {
    "before registration": EngineScript(registration_delay=0.5, outputs=NEVER),
    "before dispatch": EngineScript(tokenize_delay=0.5, outputs=NEVER),
    "before the first chunk": EngineScript(prefill_delay=0.5, outputs=NEVER),
    "between chunks": ENDLESS,
    "deaf": DEAF,
}


@pytest.mark.parametrize("moment", KILLED_LIKE_STOPPED)
async def test_rule_090_killed_is_like_stopped(
    implementation: Implementation, autojump_clock: MockClock, moment: str
) -> None:
    script = KILLED_LIKE_STOPPED[moment]
    stopped, killed = [await implementation.run(one(script, end(0.25))) for end in (stop, kill)]
    assert killed.ids == stopped.ids
    assert killed.ended == stopped.ended
    assert [time for time, _ in killed.aborts_sent] == [time for time, _ in stopped.aborts_sent]
    assert killed.error is stopped.error is None
    assert len(killed.messages(logging.INFO)) == len(stopped.messages(logging.INFO))
