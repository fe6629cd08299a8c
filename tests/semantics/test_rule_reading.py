# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 42-56: reading the engine's stream, draining it after a stop, giving it up."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import NEVER, EngineScript, Output, Retract, tokens

from .harness import Implementation
from .scenario import MODES, Action, Leave, cancel_owner, lose, one, shutdown, stop

DRAINING = "Timed out draining SGLang stream after cancellation"
DETACHED = "Detached SGLang task failed during cancellation"
ENDLESS = EngineScript(outputs=tokens(99))
DEAF = EngineScript(outputs=tokens(99), ignored_aborts=math.inf)
"""It goes on for 9.9 s whatever one asks of it."""
SILENT = EngineScript(outputs=(Output(0.1), *NEVER), ignored_aborts=math.inf)
"""One chunk at 0.1 s, then nothing."""


async def test_rule_042_an_error_beside_the_stream_reaches_a_consumer_that_waits(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Silent since 0.1 s; the shutdown at 0.25 s ends the read, and SGLang's generator with it."""
    seen = await implementation.run(one(SILENT, shutdown(0.25)))
    assert type(seen.error) is EngineShutdown
    assert seen.ended == 0.25
    assert seen.times("stream released") == [0.25]
    assert seen.tasks_left == []


def cancel_monitor(stage: Any) -> None:
    """Cancel the incumbent's monitor task from outside."""
    (monitor,) = [
        task
        for task in asyncio.all_tasks(stage.loop)
        if getattr(task.get_coro(), "__qualname__", "").endswith("_handle_cancellation")
    ]
    monitor.cancel()


@pytest.mark.only("incumbent", "ours has no monitor task that somebody could cancel (rule 131)")
async def test_rule_043_a_cancelled_monitor_cancels_the_consumer(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, Action("call", 0.25, argument=cancel_monitor)))
    assert type(seen.error) is asyncio.CancelledError
    assert seen.ended == 0.25


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("skip_tokenizer_init", [False, True])
async def test_rule_044_chunks_come_in_order_each_once(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, skip_tokenizer_init: bool
) -> None:
    """Single tokens, a step of three, four outputs in one tick, an empty chunk, a retraction."""
    if mode == "text" and skip_tokenizer_init:
        pytest.skip("text mode needs SGLang's tokenizer")
    script = EngineScript(
        outputs=(
            Output(),
            Output(tokens=3),
            Output(messages=4),
            Output(tokens=0),
            Retract(queued=0.5),
            Output(tokens=2, messages=2),
            Output(finish={"type": "length"}),
        )
    )
    seen = await implementation.run(
        one(script, mode=mode, server_args={"skip_tokenizer_init": skip_tokenizer_init})
    )
    assert seen.ids == list(range(100, 113))
    assert seen.requests[0].finish_reasons == ["length"]
    assert seen.leftovers() == {}


async def test_rule_045_the_drain_deadline_is_absolute(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s; a chatty stream, a chunk each 0.1 s, is given up at 1.25 s."""
    seen = await implementation.run(one(DEAF, stop(0.25)))
    assert seen.ended == pytest.approx(1.25)
    assert seen.ids == [100, 101]
    assert seen.error is None


async def test_rule_046_the_deadline_starts_with_a_chunk_that_comes_with_the_stop(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """The chunk at 0.2 s and the stop are one instant: given up at 1.2 s."""
    seen = await implementation.run(one(DEAF, stop(on=("output", 2))))
    assert seen.ended == pytest.approx(1.2)
    assert seen.ids == [100]


async def test_rule_046_a_last_chunk_that_comes_with_the_stop_counts(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """It ended by itself: there is nothing to abort, and no reason to drain."""
    seen = await implementation.run(one(EngineScript(outputs=tokens(2)), stop(on=("output", 2))))
    assert seen.ended == 0.2
    assert seen.aborts_sent == []
    assert seen.error is None
    assert seen.engine_busy == {}


async def test_rule_047_a_drain_that_times_out_ends_normally_with_one_warning(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SILENT, stop(0.25)))
    assert seen.ended == pytest.approx(1.25)
    assert seen.error is None
    assert seen.logged_at(DRAINING, logging.WARNING) == pytest.approx([1.25])


RESISTANT = EngineScript(outputs=SILENT.outputs, ignored_aborts=math.inf, resists_cancel_for=30.0)


async def test_rule_048_a_stream_that_ignores_cancellation_does_not_hold_its_consumer(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s in mid-read; it resists for 30 s more, and is asked to end once."""
    seen = await implementation.run(one(RESISTANT, stop(0.25), settle=35.0))
    assert seen.ended == pytest.approx(1.25, abs=0.051)
    assert seen.error is None
    assert seen.times("stream cancelled") == pytest.approx([1.25])
    assert seen.times("stream gave in") == pytest.approx([31.25])
    assert seen.tasks_left == []


async def test_rule_048_nor_does_it_on_shutdown(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(RESISTANT, shutdown(0.25), settle=35.0))
    assert seen.ended == pytest.approx(0.25, abs=0.051)
    assert type(seen.error) is EngineShutdown
    assert len(seen.times("stream cancelled")) == 1
    assert seen.tasks_left == []


async def test_rule_049_an_error_after_detaching_is_logged(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(
        outputs=SILENT.outputs,
        ignored_aborts=math.inf,
        resists_cancel_for=2.0,
        cancel_error=RuntimeError("too late"),
    )
    seen = await implementation.run(one(script, stop(0.25)))
    assert seen.error is None
    (record,) = [record for record in seen.logs if record.message == DETACHED]
    assert record.time == pytest.approx(3.25)
    assert record.level == logging.ERROR
    assert repr(record.error) == "RuntimeError('too late')"
    assert seen.loop_errors == []


async def test_rule_049_a_cancelled_stream_is_not_an_error(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SILENT, stop(0.25)))
    assert seen.messages(logging.ERROR) == []
    assert seen.loop_errors == []


async def test_rule_050_a_stream_that_ends_in_the_drain_ends_the_request(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Stopped at 0.25 s, the engine's last word comes at 0.65 s."""
    script = EngineScript(outputs=tokens(99), abort_latency=0.4)
    seen = await implementation.run(one(script, stop(0.25)))
    assert seen.ended == pytest.approx(0.65)
    assert seen.error is None
    assert seen.messages(logging.WARNING) == []
    assert seen.leftovers() == {}


async def test_rule_051_nothing_is_sent_to_a_client_that_has_left(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """n = 3, the third choice late: stopped at 0.25 s, it first speaks at 0.7 s."""
    script = EngineScript(outputs=tokens(99), choice_delays=(0.0, 0.0, 0.6))
    seen = await implementation.run(one(script, stop(0.25), n=3))
    assert max(output.time for output in seen.outputs) < 0.25
    assert len({rid for _, rid in seen.effective_aborts}) == 3
    assert len(seen.effective_aborts) == 3
    assert all(time <= 0.7 for time, _ in seen.effective_aborts)
    assert seen.engine_busy == {}


async def test_rule_052_empty_chunks_that_are_not_the_last_are_skipped(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Token mode (D10): a retraction makes SGLang emit one."""
    script = EngineScript(
        outputs=(
            Output(),
            Output(tokens=0),
            Output(),
            Retract(queued=0.2),
            Output(tokens=0, finish={"type": "stop", "matched": 2}),
        )
    )
    seen = await implementation.run(one(script))
    assert [item["token_ids"] for item in seen.items] == [[100], [101], []]
    assert seen.requests[0].finish_reasons == ["stop"]
    assert seen.leftovers() == {}


@pytest.mark.parametrize("mode", ["text", "native"])
async def test_rule_052_is_about_token_mode_only(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """Text and native mode pass an empty chunk on; the rule's "never" is too wide."""
    script = EngineScript(outputs=(Output(), Output(tokens=0), *tokens(1)))
    seen = await implementation.run(one(script, mode=mode))
    assert len(seen.items) == 3
    assert seen.ids == [100, 101]


@pytest.mark.parametrize("mode", MODES)
async def test_rule_053_a_stopped_request_ends_without_a_last_chunk_and_without_an_error(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.25), mode=mode))
    assert seen.ids == [100, 101]
    assert seen.requests[0].finish_reasons == []
    assert seen.error is None
    assert seen.leftovers() == {}


@pytest.fixture
def no_collector() -> Any:
    """The cyclic collector is off, so that what is freed was freed by reference counting."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.fixed("a finished task keeps the frames of the stream's end alive")
async def test_rule_055_a_finished_request_is_freed_by_reference_counting(
    implementation: Implementation, autojump_clock: MockClock, no_collector: None
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3))))
    assert seen.ids == [100, 101, 102]
    assert seen.not_freed == []


@pytest.mark.only("incumbent", "what the incumbent does instead")
async def test_rule_055_incumbent_keeps_the_stream(
    implementation: Implementation, autojump_clock: MockClock, no_collector: None
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3))))
    assert "stream" in seen.not_freed


@pytest.mark.parametrize("how", ["aclose", "drop"])
async def test_rule_056_a_consumer_that_leaves_ends_the_read(
    implementation: Implementation, autojump_clock: MockClock, how: Any
) -> None:
    """It takes the chunk at 0.2 s and goes."""
    seen = await implementation.run(one(ENDLESS, leave=Leave(2, how), arm="pull"))
    assert seen.ids == [100, 101]
    assert [time for time, _ in seen.effective_aborts] == [0.2]
    assert seen.loop_errors == []
    assert seen.leftovers() == {}


async def test_rule_056_a_consumer_that_is_lost_ends_the_read(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Lost at 0.25 s without a word; at the latest the next chunk, at 0.3 s, tells."""
    seen = await implementation.run(one(ENDLESS, lose(0.25)))
    assert seen.ids == [100, 101]
    ((aborted, _),) = seen.effective_aborts
    assert aborted <= 0.3
    assert seen.error is None
    assert seen.leftovers() == {}


async def test_rule_056_an_owner_that_is_cancelled_ends_the_read(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, cancel_owner(0.25)))
    assert seen.requests[0].owner_cancelled
    assert seen.effective_aborts == [(0.25, seen.submitted_rid)]
    assert seen.leftovers() == {}
