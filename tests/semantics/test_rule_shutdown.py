# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 35-41: the worker's shutdown reaches its migrate phase while a request streams.

The engine's part is aborted, and the handler ends with a bare ``EngineShutdown``, which tells the
frontend to go on elsewhere with the tokens that it has.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import NEVER, EngineScript, Output, finish_error, tokens

from .harness import Implementation
from .scenario import MODES, Action, Scenario, break_stream, one, shutdown, stop

MESSAGE = "Engine was shut down during token generation"
ENDLESS = EngineScript(outputs=tokens(99), abort_latency=0.5)


@pytest.mark.parametrize("mode", MODES)
async def test_rule_035_a_shutdown_aborts_as_a_stop_does_and_raises(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(one(ENDLESS, shutdown(0.25), mode=mode))
    assert seen.effective_aborts == [(0.25, seen.submitted_rid)]
    assert seen.logged_at("Aborted Request ID: dynamo-request") == [0.25]
    assert (type(seen.error), str(seen.error)) == (EngineShutdown, MESSAGE)
    assert seen.ids == [100, 101]
    assert seen.leftovers() == {}


async def test_rule_036_the_ordered_abort_is_waited_for_at_most_1_s(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Shut down at 0.1 s, and the request will not register before 5 s."""
    script = EngineScript(registration_delay=5.0)
    seen = await implementation.run(one(script, shutdown(0.1)))
    assert type(seen.error) is EngineShutdown
    assert seen.ended == pytest.approx(1.1)
    assert seen.logged_at(
        "Timed out waiting for ordered SGLang abort during shutdown", logging.WARNING
    ) == pytest.approx([1.1])
    assert seen.effective_aborts == []
    assert seen.engine_busy == {}


async def test_rule_036_the_wait_ends_with_the_abort(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Shut down at 0.1 s, dispatched at 0.3 s: aborted and over right then."""
    script = EngineScript(tokenize_delay=0.3, outputs=NEVER, abort_latency=0.5)
    seen = await implementation.run(one(script, shutdown(0.1)))
    assert [time for time, _ in seen.effective_aborts] == pytest.approx([0.3], abs=0.05)
    assert type(seen.error) is EngineShutdown
    assert seen.ended == pytest.approx(0.3, abs=0.05)
    assert seen.leftovers() == {}


async def test_rule_036_chunks_are_delivered_while_the_abort_is_waited_for(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """SGLang never stamps the dispatch, so that the incumbent's abort is late, at 0.5 s.

    Whenever the abort is out, all that the engine produced before has been delivered.
    """
    script = EngineScript(outputs=tokens(99), dispatch_not_stamped=True, abort_latency=0.5)
    seen = await implementation.run(one(script, shutdown(0.25)))
    ((aborted, _),) = seen.aborts_sent
    produced = [
        token
        for entry in seen.journal.of("output")
        if entry.time < aborted
        for token in entry.detail["ids"]
    ]
    assert seen.ids[: len(produced)] == produced
    assert len(produced) >= 2
    assert type(seen.error) is EngineShutdown
    assert seen.ended == pytest.approx(aborted)


async def test_rule_037_there_is_no_drain_on_shutdown(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Shut down at 0.25 s in the middle of a read; the engine would end the stream at 0.75 s."""
    seen = await implementation.run(one(ENDLESS, shutdown(0.25)))
    assert seen.ended == 0.25
    assert seen.times("stream released") == [0.25]
    assert seen.count("Timed out draining") == 0
    assert seen.leftovers() == {}


@pytest.mark.parametrize("hops", range(0, 24, 2))
async def test_rule_038_a_chunk_of_the_same_instant_is_delivered_before_the_error_or_not_at_all(
    implementation: Implementation, autojump_clock: MockClock, hops: int
) -> None:
    """A chunk comes `hops` passes of the loop after the shutdown, all at 0.5 s."""
    script = EngineScript(outputs=(Output(0.1), *NEVER), abort_latency=0.5)
    seen = await implementation.run(
        one(script, shutdown(0.5), Action("emit", 0.5, argument=Output(), hops=hops))
    )
    assert type(seen.error) is EngineShutdown
    assert seen.ids in ([100], [100, 101])
    assert seen.leftovers() == {}


async def test_rule_038_a_chunk_of_the_next_instant_is_not_delivered(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The abort is out at 0.5 s; the engine finishes its step at 0.501 s."""
    script = EngineScript(outputs=(Output(0.1), *NEVER), abort_latency=0.5)
    seen = await implementation.run(
        one(script, shutdown(0.5), Action("emit", 0.501, argument=Output()))
    )
    assert type(seen.error) is EngineShutdown
    assert seen.ids == [100]
    assert seen.leftovers() == {}


ENGINE_ABORTS = [finish_error(None, None, "Aborted"), finish_error(500, "InternalError", "broken")]


def aborted_in_the_instant_of_the_shutdown(finish: dict[str, Any], mode: Any) -> Scenario:
    """The engine itself aborts the request as the worker shuts down, at 0.3 s."""
    script = EngineScript(outputs=(Output(), Output(), Output(finish=finish)))
    return one(script, shutdown(on=("output", 3)), mode=mode)


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize("finish", ENGINE_ABORTS)
async def test_rule_039_an_abort_chunk_during_shutdown_is_not_a_finish(
    implementation: Implementation, autojump_clock: MockClock, finish: dict[str, Any], mode: Any
) -> None:
    seen = await implementation.run(aborted_in_the_instant_of_the_shutdown(finish, mode))
    assert type(seen.error) is EngineShutdown
    assert seen.ids == [100, 101]
    assert seen.requests[0].finish_reasons == []
    assert seen.leftovers() == {}


@pytest.mark.fixed("native chunks are opaque to it: the abort is passed on as a finish")
@pytest.mark.parametrize("finish", ENGINE_ABORTS)
async def test_rule_039_nor_in_native_mode(
    implementation: Implementation, autojump_clock: MockClock, finish: dict[str, Any]
) -> None:
    seen = await implementation.run(aborted_in_the_instant_of_the_shutdown(finish, "native"))
    assert type(seen.error) is EngineShutdown
    assert seen.ids == [100, 101]
    assert seen.requests[0].finish_reasons == []
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_039_incumbent_finishes_and_fails_a_native_request(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        aborted_in_the_instant_of_the_shutdown(ENGINE_ABORTS[0], "native")
    )
    assert seen.requests[0].finish_reasons == ["abort"]
    assert type(seen.error) is EngineShutdown


async def test_rule_040_shutdown_comes_before_the_clients_stop(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, shut down at 0.3 s, in the drain: an unfinished request migrates."""
    seen = await implementation.run(one(ENDLESS, stop(0.25), shutdown(0.3)))
    assert type(seen.error) is EngineShutdown
    assert len(seen.effective_aborts) == 1
    assert seen.leftovers() == {}


async def test_rule_041_shutdown_replaces_the_streams_error(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The stream fails in the instant of the shutdown, at 0.25 s."""
    script = EngineScript(outputs=tokens(99), breakable=True)
    seen = await implementation.run(
        one(script, break_stream(RuntimeError("broken"), on=("shutdown", 1)), shutdown(0.25))
    )
    assert type(seen.error) is EngineShutdown
    assert seen.engine_busy == {}
