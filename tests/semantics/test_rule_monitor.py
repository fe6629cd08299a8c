# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 10-18: how a stop or a shutdown is noticed, and what it sets in motion.

The incumbent has a monitor task per stream for it. Ours has none: a callback on the context, one
walk over the live requests on shutdown.
"""

from __future__ import annotations

import logging

import pytest
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import NEVER, EngineScript, Output, tokens

from .harness import Implementation
from .scenario import kill, one, shutdown, stop

SIGNAL = "Cancellation or shutdown signal received for SGLang Request ID "
ABORTED = "Aborted Request ID: dynamo-request"
ENDLESS = EngineScript(outputs=tokens(9, finish=None))


@pytest.mark.parametrize("end", [stop, kill])
async def test_rule_010_a_stopped_or_killed_context_is_a_signal(
    implementation: Implementation, autojump_clock: MockClock, end: object
) -> None:
    seen = await implementation.run(one(ENDLESS, end(0.25)))  # type: ignore[operator]
    assert seen.effective_aborts == [(0.25, seen.rid())]
    assert seen.error is None
    assert seen.leftovers() == {}


async def test_rule_010_a_shutdown_is_a_signal(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, shutdown(0.25)))
    assert seen.effective_aborts == [(0.25, seen.rid())]
    assert type(seen.error) is EngineShutdown
    assert seen.leftovers() == {}


async def test_rule_010_shutdown_wins_when_both_come_at_once(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Both in one callback at 0.2 s, the stop first."""
    both = {"on": ("output", 2)}
    seen = await implementation.run(one(ENDLESS, stop(**both), shutdown(**both)))
    assert type(seen.error) is EngineShutdown
    assert seen.effective_aborts == [(0.2, seen.rid())]
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "our handlers always belong to a worker that can shut down")
async def test_rule_011_without_a_shutdown_event_only_the_context_is_watched(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, shutdown(0.15), stop(0.25), shutdown_event=False))
    assert seen.effective_aborts == [(0.25, seen.rid())]
    assert seen.error is None
    assert seen.leftovers() == {}


async def test_rule_012_a_signal_is_logged_once(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, again at 0.26 s, killed at 0.265 s, while the abort takes effect."""
    seen = await implementation.run(one(ENDLESS, stop(0.25), stop(0.26), kill(0.265)))
    line = f"{SIGNAL}{seen.rid()}, Context: dynamo-request"
    assert seen.logged_at(SIGNAL) == [0.25]
    assert line in seen.messages(logging.INFO)


async def test_rule_012_without_a_signal_nothing_is_logged(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3))))
    assert seen.count(SIGNAL) == 0
    assert seen.count(ABORTED) == 0


@pytest.mark.only("incumbent", "our engine owns its tokenizer manager: there is no engine without")
async def test_rule_013_without_a_tokenizer_manager_nothing_can_be_aborted(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.25), registry="no manager"))
    assert "SGLang tokenizer_manager not found for abort request: dynamo-request" in (
        seen.messages(logging.ERROR)
    )
    assert [time for time, _ in seen.aborts_called] == [1.25]  # SGLang's own, at the drain deadline
    assert seen.error is None

    seen = await implementation.run(one(ENDLESS, shutdown(0.25), registry="no manager"))
    assert type(seen.error) is EngineShutdown
    assert seen.ended == 0.25


async def test_rule_014_the_drain_does_not_wait_for_the_ordered_abort(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.1 s, dispatched at 0.3 s, deaf to aborts: given up at 1.1 s, not at 1.3 s."""
    script = EngineScript(tokenize_delay=0.3, outputs=NEVER, ignored_aborts=1)
    seen = await implementation.run(one(script, stop(0.1)))
    assert seen.effective_aborts[0][0] == pytest.approx(0.3, abs=0.05)
    assert seen.ended == pytest.approx(1.1)


async def test_rule_015_known_response_ids_are_aborted_and_said_once(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.25), n=2))
    assert [time for time, _ in seen.effective_aborts] == [0.25, 0.25]
    assert len({rid for _, rid in seen.effective_aborts}) == 2
    assert seen.logged_at(ABORTED) == [0.25]


PREFILLING = EngineScript(outputs=(Output(0.1, tokens=0), Output(5.0, finish={"type": "length"})))


async def test_rule_016_a_prefill_without_a_registry_is_aborted_at_once(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(PREFILLING, stop(0.2), role="prefill", registry="list"))
    assert seen.effective_aborts == [(0.2, seen.rid())]
    assert seen.logged_at(ABORTED) == [0.2]
    assert seen.leftovers() == {}


async def test_rule_016_its_failing_abort_is_logged_not_raised(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=PREFILLING.outputs, abort_send_errors=1)
    seen = await implementation.run(one(script, stop(0.2), role="prefill", registry="list"))
    assert seen.logged_at("Failed to abort SGLang Request ID", logging.ERROR) == [0.2]
    assert seen.error is None
    assert seen.logged_at(ABORTED) == []


FAILING_ABORT = one(
    EngineScript(outputs=tokens(9, finish=None), abort_send_errors=1), stop(0.25), n=2
)


@pytest.mark.fixed("a failing abort of a response id reaches the consumer")
async def test_rule_017_a_failing_abort_of_a_response_id_is_logged_not_raised(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(FAILING_ABORT)
    assert seen.error is None
    assert seen.count("Failed to abort SGLang Request ID", logging.ERROR) == 1
    assert len(seen.effective_aborts) == 2
    assert seen.engine_busy == {}


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_017_incumbent_raises_the_failing_abort(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(FAILING_ABORT)
    assert repr(seen.error) == "RuntimeError('abort failed')"
    assert seen.ended == 0.25


SPEAKS_AT_5S = EngineScript(prefill_delay=4.9, outputs=tokens(9, finish=None))


@pytest.mark.fixed("a stop before the first chunk is not noticed until that chunk")
async def test_rule_018_a_stop_before_the_first_response_id_is_noticed(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Two choices, silent until 5 s; stopped at 0.1 s; at most a drain later all is over."""
    seen = await implementation.run(one(SPEAKS_AT_5S, stop(0.1), n=2))
    assert seen.ended is not None
    assert seen.ended <= 1.1
    assert len(seen.effective_aborts) == 2
    assert seen.engine_busy == {}


@pytest.mark.fixed("a shutdown before the first chunk is not noticed until that chunk")
async def test_rule_018_a_shutdown_before_the_first_response_id_is_noticed(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=NEVER)
    seen = await implementation.run(one(script, shutdown(0.1), n=2, horizon=30))
    assert type(seen.error) is EngineShutdown
    assert seen.ended is not None
    assert seen.ended <= 1.1
    assert seen.engine_busy == {}


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_018_incumbent_waits_for_the_first_chunk(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SPEAKS_AT_5S, stop(0.1), n=2))
    assert min(time for time, _ in seen.aborts_called) >= 5.0
    silent = await implementation.run(
        one(EngineScript(outputs=NEVER), shutdown(0.1), n=2, horizon=30)
    )
    assert silent.ended is None
