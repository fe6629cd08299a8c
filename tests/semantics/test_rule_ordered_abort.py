# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 19-34: an abort in order: registered, then dispatched, then aborted.

SGLang forgets an abort of a rid that it does not know, and one that is sent between registration
and dispatch spoils the request for good: it marks the state, matches nothing, and no later abort
goes out.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import NEVER, EngineScript, Output, tokens

from .harness import Implementation
from .observation import Observation
from .scenario import Action, one, shutdown, stop

ABORTED = "Aborted Request ID: dynamo-request"
POLL = 0.05
"""Seconds between the incumbent's looks at the registry, at most."""


async def test_rule_019_a_stop_before_registration_waits_for_it(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.1 s, registered and dispatched at 0.5 s: one abort then, none before."""
    script = EngineScript(registration_delay=0.5, outputs=NEVER)
    seen = await implementation.run(one(script, stop(0.1)))
    assert [time for time, _ in seen.aborts_called] == pytest.approx([0.5], abs=POLL)
    assert seen.effective_aborts == seen.aborts_called
    assert seen.times("registered") == [0.5]
    assert seen.logged_at(ABORTED) == [seen.aborts_called[0][0]]
    assert seen.items == []
    assert seen.leftovers() == {}


NEVER_REGISTERS = one(EngineScript(registration_delay=60.0), stop(0.1), settle=35.0)


async def test_rule_020_a_request_that_does_not_register_is_given_up(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(NEVER_REGISTERS)
    assert seen.ended == pytest.approx(1.1)
    assert seen.times("registered") == []
    assert seen.aborts_called == []
    assert seen.logged_at(ABORTED) == []
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "we close the generator at the drain deadline; nothing can register")
async def test_rule_020_incumbent_waits_30_s_for_the_registration(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(NEVER_REGISTERS)
    start = "Timed out waiting for SGLang Request ID "
    (time,) = seen.logged_at(start, logging.WARNING)
    assert time == pytest.approx(30.1)
    assert f"{start}{seen.submitted_rid} to register" in seen.messages(logging.WARNING)


async def test_rule_021_a_stream_that_ends_before_registering_needs_no_abort(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Shut down at 0.1 s; the stream fails at 0.5 s without having registered."""
    script = EngineScript(registration_delay=0.5, registration_error=ValueError("refused"))
    seen = await implementation.run(one(script, shutdown(0.1)))
    assert type(seen.error) is EngineShutdown
    assert seen.aborts_called == []
    assert seen.leftovers() == {}
    if implementation.name == "incumbent":
        line = "Abandoning SGLang abort for Context dynamo-request; request never registered"
        assert seen.logged_at(line) == pytest.approx([0.5], abs=POLL)


async def test_rule_022_the_engines_own_id_is_aborted_where_it_differs(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.1 s; the first chunk, at 0.3 s, has another id than the one submitted."""
    script = EngineScript(
        registers_as="another-id", prefill_delay=0.2, outputs=tokens(9, finish=None)
    )
    seen = await implementation.run(one(script, stop(0.1)))
    assert {rid for _, rid in seen.aborts_called} == {"another-id"}
    assert [time for time, _ in seen.effective_aborts] == pytest.approx([0.3], abs=POLL)
    assert seen.items == []
    assert seen.engine_busy == {}


PIPELINE = {"pp_size": 2}
"""A layout where nothing proves that an abort arrives behind its request."""


async def test_rule_023_an_ordered_abort_outlives_its_request(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, deaf to aborts, given up at 1.25 s: retries go on behind it."""
    script = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)
    seen = await implementation.run(one(script, stop(0.25), server_args=PIPELINE))
    assert seen.ended == pytest.approx(1.25)
    assert [time for time, _ in seen.aborts_called if time > 1.3] != []


async def test_rule_024_a_stop_before_dispatch_waits_for_it(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.1 s, in tokenization until 0.3 s: one abort then, none before."""
    script = EngineScript(tokenize_delay=0.3, outputs=NEVER)
    seen = await implementation.run(one(script, stop(0.1)))
    assert [time for time, _ in seen.aborts_called] == pytest.approx([0.3], abs=POLL)
    assert seen.effective_aborts == seen.aborts_called
    assert seen.logged_at(ABORTED) == [seen.aborts_called[0][0]]
    assert seen.items == []
    assert seen.leftovers() == {}


SLOW_TOKENIZER = one(EngineScript(tokenize_delay=0.6, outputs=tokens(99)), stop(0.1))


@pytest.mark.fixed("after 0.25 s an abort is sent that the scheduler can't match")
async def test_rule_025_nothing_is_sent_before_dispatch(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.1 s, dispatched at 0.6 s, within the drain: one abort that hits."""
    seen = await implementation.run(SLOW_TOKENIZER)
    assert [time for time, _ in seen.aborts_sent] == pytest.approx([0.6], abs=POLL)
    assert seen.effective_aborts == seen.aborts_sent
    assert seen.items == []
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_025_incumbent_spoils_the_request(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The early abort matches nothing, and the request decodes on with nobody listening."""
    seen = await implementation.run(SLOW_TOKENIZER)
    rid = seen.submitted_rid
    assert f"Timed out waiting for SGLang Request ID {rid} to dispatch" in (
        seen.messages(logging.WARNING)
    )
    assert seen.aborts_sent == [(0.35, rid)]
    assert seen.effective_aborts == []
    assert seen.ended == pytest.approx(1.1)
    assert seen.engine_busy == {rid: "running"}


async def test_rule_025_a_request_that_is_not_dispatched_in_time_never_runs(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Tokenization takes 5 s; at the drain deadline SGLang drops the undispatched state."""
    script = EngineScript(tokenize_delay=5.0, outputs=tokens(99))
    seen = await implementation.run(one(script, stop(0.1)))
    assert seen.ended == pytest.approx(1.1)
    assert seen.times("dispatched") == []
    assert seen.effective_aborts == []
    assert seen.leftovers() == {}


async def test_rule_026_a_build_without_dispatch_times_is_aborted_at_once(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=tokens(99), legacy_time_stats=True, ignored_aborts=math.inf)
    seen = await implementation.run(one(script, stop(0.25)))
    before_the_deadline = [time for time, _ in seen.aborts_called if time < 1.25]
    assert before_the_deadline == pytest.approx([0.25, 0.3, 0.4, 0.6, 1.0])


def reuse_rid(stage: Any) -> None:
    """Somebody else's request appears under the rid of the first."""
    manager = stage.engine.tokenizer_manager
    (first,) = stage.engine.journal.of("registered")
    assert first.rid not in manager.rid_to_state
    manager.rid_to_state[first.rid] = object()


def forget_rid(stage: Any) -> None:
    stage.engine.tokenizer_manager.rid_to_state.clear()


async def test_rule_027_a_reused_rid_is_not_aborted(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Aborted at 0.25 s, gone at 0.27 s, its rid in other hands before the retry at 0.3 s."""
    seen = await implementation.run(
        one(
            EngineScript(outputs=tokens(99)),
            stop(0.25),
            Action("call", 0.28, argument=reuse_rid),
            Action("call", 5.0, argument=forget_rid),
            server_args=PIPELINE,
        )
    )
    assert seen.aborts_called == [(0.25, seen.submitted_rid)]


async def test_rule_027_a_request_that_ends_during_the_wait_is_not_aborted(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.1 s, refused by the tokenizer at 0.2 s."""
    script = EngineScript(tokenize_delay=0.2, dispatch_error=ValueError("too long"))
    seen = await implementation.run(one(script, stop(0.1)))
    assert seen.aborts_called == []
    assert seen.logged_at(ABORTED) == []
    assert seen.leftovers() == {}


async def test_rule_028_an_abort_is_said_only_when_it_is_sent(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The socket refuses the abort at 0.25 s; closing the stream at 1.25 s aborts after all."""
    script = EngineScript(outputs=tokens(99), abort_send_errors=1)
    seen = await implementation.run(one(script, stop(0.25)))
    assert seen.times("abort refused by the socket") == [0.25]
    assert 0.25 not in seen.logged_at(ABORTED)
    errors = [record for record in seen.logs if record.level >= logging.ERROR]
    assert [(record.time, repr(record.error)) for record in errors] == [
        (0.25, "RuntimeError('abort failed')")
    ]
    assert len(seen.effective_aborts) == 1
    assert seen.error is None
    assert seen.leftovers() == {}


PROVEN_LAYOUTS: list[dict[str, Any]] = [
    {},
    {"dp_size": 2},
    {
        "dp_size": 2,
        "tp_size": 2,
        "enable_dp_attention": True,
        "enable_dp_attention_local_control_broadcast": True,
    },
]


def before(seen: Observation, limit: float) -> list[float]:
    """Times of abort calls before `limit`, when the stream is closed and SGLang aborts itself."""
    return [time for time, _ in seen.aborts_called if time < limit]


@pytest.mark.parametrize("server_args", PROVEN_LAYOUTS, ids=["tp", "dp", "local-control"])
async def test_rule_029_one_abort_where_the_order_is_proven(
    implementation: Implementation, autojump_clock: MockClock, server_args: dict[str, Any]
) -> None:
    """Even if the request goes on: the abort is known to have arrived behind it."""
    script = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)
    seen = await implementation.run(one(script, stop(0.25), server_args=server_args))
    assert before(seen, 1.25) == [0.25]


@pytest.mark.parametrize(
    "server_args",
    [PIPELINE, {"dp_size": 2, "tp_size": 2, "enable_dp_attention": True}],
    ids=["pipeline", "global-control"],
)
async def test_rule_030_retries_where_the_order_is_not_proven(
    implementation: Implementation, autojump_clock: MockClock, server_args: dict[str, Any]
) -> None:
    script = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)
    seen = await implementation.run(one(script, stop(0.25), server_args=server_args))
    assert before(seen, 1.25) == pytest.approx([0.25, 0.3, 0.4, 0.6, 1.0])


async def test_rule_031_at_most_eight_retries_further_and_further_apart(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)
    seen = await implementation.run(one(script, stop(0.25), server_args=PIPELINE, settle=20.0))
    retries = [0.3, 0.4, 0.6, 1.0, 1.8, 2.8, 3.8, 4.8]
    called = [time for time, _ in seen.aborts_called]
    called.remove(1.25)  # SGLang's own, as the stream is closed at the drain deadline
    assert called == pytest.approx([0.25, *retries])
    rid = seen.submitted_rid
    assert f"SGLang request {rid} remained registered after 8 abort retries" in (
        seen.messages(logging.WARNING)
    )
    assert seen.count(ABORTED) == 1


async def test_rule_031_retries_stop_when_the_request_is_gone(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        one(EngineScript(outputs=tokens(99)), stop(0.25), server_args=PIPELINE)
    )
    assert before(seen, 9.0) == [0.25]
    assert seen.count("SGLang request") == 0
    assert seen.leftovers() == {}


async def test_rule_032_retries_do_not_hold_the_drain(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Deaf until its final output at 0.8 s, between two retries: it ends there."""
    script = EngineScript(
        outputs=(Output(0.1), Output(0.7, finish={"type": "length"})), ignored_aborts=math.inf
    )
    seen = await implementation.run(one(script, stop(0.25), server_args=PIPELINE))
    assert seen.ended == pytest.approx(0.8)
    assert seen.leftovers() == {}


DEAF_ONCE = one(
    EngineScript(outputs=tokens(99), ignored_aborts=1), stop(0.25), server_args=PIPELINE
)


@pytest.mark.fixed("SGLang sends one abort per state; eight retries send nothing")
async def test_rule_033_a_retry_reaches_the_scheduler(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The scheduler misses the abort at 0.25 s; the retry at 0.3 s hits."""
    seen = await implementation.run(DEAF_ONCE)
    assert [time for time, _ in seen.aborts_sent] == pytest.approx([0.25, 0.3])
    assert seen.ended == pytest.approx(0.32)
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_033_incumbent_retries_in_vain(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(DEAF_ONCE)
    assert seen.aborts_sent == [(0.25, seen.submitted_rid)]
    assert len(seen.aborts_called) == 9 + 1  # and SGLang's own, as the stream is closed
    assert seen.engine_busy == {seen.submitted_rid: "running"}


async def test_rule_034_cleanup_ends_the_pending_aborts(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Retries until 4.8 s, but the worker takes its handler down at 2 s."""
    script = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)
    seen = await implementation.run(
        one(script, stop(0.25), Action("cleanup", 2.0), server_args=PIPELINE)
    )
    assert max(before(seen, math.inf)) == pytest.approx(1.8)
    assert seen.pending_aborts == 0
    assert seen.logged_at("SGLang request") == []
