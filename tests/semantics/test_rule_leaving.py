# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 58-66: leaving a request in the middle, and what must not be lost on the way out."""

from __future__ import annotations

from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import NEVER, EngineScript, Output, tokens

from .harness import Implementation
from .scenario import MODES, Leave, Scenario, break_stream, cancel_owner, one, shutdown, stop

ENDLESS = EngineScript(outputs=tokens(99))
INSTANTS = range(16)
"""Passes of the event loop within one instant."""


@pytest.mark.parametrize("mode", MODES)
async def test_rule_058_nothing_runs_on_when_a_request_has_ended(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3)), mode=mode, settle=0.001))
    assert seen.ended == pytest.approx(0.3)
    assert seen.leftovers() == {}


@pytest.mark.parametrize("hops", INSTANTS)
async def test_rule_059_a_stop_just_before_the_consumer_leaves_aborts_once(
    implementation: Implementation, autojump_clock: MockClock, hops: int
) -> None:
    """Stopped with the chunk at 0.2 s; the owner is cancelled some passes of the loop later."""
    instant = {"on": ("output", 2)}
    seen = await implementation.run(
        one(ENDLESS, stop(**instant), cancel_owner(hops=hops, **instant))
    )
    assert [time for time, _ in seen.effective_aborts] == [0.2]
    assert seen.ids == [100]
    assert seen.leftovers() == {}


@pytest.mark.parametrize("hops", INSTANTS)
async def test_rule_060_a_shutdown_comes_before_the_owners_cancellation(
    implementation: Implementation, autojump_clock: MockClock, hops: int
) -> None:
    """Shut down at 0.2 s; whenever the owner is cancelled in that instant, one abort goes out."""
    instant = {"on": ("output", 2)}
    seen = await implementation.run(
        one(ENDLESS, shutdown(**instant), cancel_owner(hops=hops, **instant))
    )
    assert [time for time, _ in seen.effective_aborts] == [0.2]
    assert seen.requests[0].owner_cancelled or type(seen.error) is EngineShutdown
    assert (seen.engine_busy, seen.registry, seen.tasks_left) == ({}, [], [])


async def test_rule_060_an_owner_cancelled_in_the_drain_ends_it(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, the owner cancelled at 0.4 s; the engine ends at 0.75 s."""
    script = EngineScript(outputs=tokens(99), abort_latency=0.5)
    seen = await implementation.run(one(script, stop(0.25), cancel_owner(0.4)))
    assert seen.requests[0].owner_cancelled
    assert seen.ended == pytest.approx(0.4, abs=0.051)
    assert len(seen.effective_aborts) == 1
    assert seen.leftovers() == {}


def cancelled_as_the_stream_ends(hops: int) -> Scenario:
    """The stream ends at 0.25 s without a last chunk; the owner is cancelled just after that."""
    return one(
        EngineScript(outputs=tokens(99), breakable=True),
        break_stream(None, 0.25),
        cancel_owner(on=("stream released", 1), hops=hops),
    )


@pytest.mark.fixed("a cancellation that arrives while it awaits its monitor is swallowed")
async def test_rule_061_the_owners_cancellation_is_not_swallowed(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    for hops in INSTANTS:
        seen = await implementation.run(cancelled_as_the_stream_ends(hops))
        assert not seen.requests[0].cancel_swallowed, f"{hops} passes after the stream's end"


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_061_incumbent_ends_as_if_nothing_had_been(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    swallowed = []
    for hops in INSTANTS:
        seen = await implementation.run(cancelled_as_the_stream_ends(hops))
        if seen.requests[0].cancel_swallowed:
            assert seen.error is None
            swallowed.append(hops)
    assert swallowed != []


FAILING_ABORT_IN_A_SHUTDOWN = one(
    EngineScript(outputs=tokens(99), abort_send_errors=1), shutdown(0.25), n=2
)


@pytest.mark.fixed("a failed monitor skips what follows it, the shutdown check among it")
async def test_rule_062_a_failing_abort_does_not_hide_the_shutdown(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(FAILING_ABORT_IN_A_SHUTDOWN)
    assert type(seen.error) is EngineShutdown
    assert len(seen.effective_aborts) == 2
    assert seen.engine_busy == {}


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_062_incumbent_raises_the_failing_abort(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(FAILING_ABORT_IN_A_SHUTDOWN)
    assert repr(seen.error) == "RuntimeError('abort failed')"


@pytest.mark.parametrize("how", ["aclose", "drop"])
async def test_rule_064_leaving_aborts_every_choice_once(
    implementation: Implementation, autojump_clock: MockClock, how: Any
) -> None:
    """n = 3; the consumer leaves with the second chunk, at 0.1 s: two choices have spoken."""
    script = EngineScript(outputs=tokens(99), choice_delays=(0.0, 0.0, 0.5))
    seen = await implementation.run(one(script, n=3, leave=Leave(2, how), arm="pull"))
    assert [time for time, _ in seen.effective_aborts] == [0.1] * 3
    assert len({rid for _, rid in seen.effective_aborts}) == 3
    assert seen.engine_busy == {}
    assert seen.tasks_left == []


async def test_rule_065_nothing_is_aborted_after_the_final_chunk(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3))))
    assert seen.requests[0].finish_reasons == ["length"]
    assert seen.aborts_called == []
    assert seen.leftovers() == {}


async def test_rule_065_a_choice_that_has_finished_is_not_aborted(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """n = 2: the first finishes at 0.1 s, the second would at 0.6 s; the owner goes at 0.3 s."""
    script = EngineScript(outputs=tokens(1), choice_delays=(0.0, 0.5))
    seen = await implementation.run(one(script, cancel_owner(0.3), n=2))
    first, second = (entry.rid for entry in seen.journal.of("dispatched")[1:])
    assert seen.times("output")[1] == 0.1
    assert seen.aborts_sent == [(0.3, second)]
    assert first not in {rid for _, rid in seen.aborts_called}


@pytest.mark.parametrize("hops", [0, 1, 2])
async def test_rule_066_a_shutdown_while_the_request_is_left_still_counts(
    implementation: Implementation, autojump_clock: MockClock, hops: int
) -> None:
    """The stream ends at 0.25 s, unfinished, and the worker shuts down in that instant."""
    script = EngineScript(outputs=(Output(), Output(), *NEVER), breakable=True)
    seen = await implementation.run(
        one(script, break_stream(None, 0.25), shutdown(on=("stream released", 1), hops=hops))
    )
    assert type(seen.error) is EngineShutdown
    assert seen.engine_busy == {}
