# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""50 chunks in one tick and a slow reader: exact sequence, bounded memory, prompt cancel.

With incremental output through the tap, and without it through SGLang's own stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.script import EngineScript, Hold, Output

from . import garbage, run
from .case import Act, Case, Consumer, Request
from .invariants import violations
from .play import play
from .record import Record

TICKS = 6
CHUNKS = 50
"""In one tick."""

IDS = list(range(100, 100 + CHUNKS))

PROMPT_S = 0.1
"""Virtual seconds within which a stopped request whose engine obeys at once has to be over."""


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with run.warm():
        yield


def one_tick(**more: Any) -> EngineScript:
    return EngineScript(outputs=(Output(0.1, messages=CHUNKS), Hold()), **more)


def many_ticks() -> EngineScript:
    """Chunks without tokens: their ids would not fit, and what waits is what counts here."""
    return EngineScript(outputs=(*[Output(0.1, 0, messages=CHUNKS)] * TICKS, Hold()))


def judge(request: Request, *acts: Act, **knobs: Any) -> Iterator[Record]:
    """The case under several orders of its tasks; each violates nothing."""
    for seed in range(8):
        record = play(Case(seed, (request,), acts, **knobs), search=garbage.ours)
        assert violations(record) == []
        yield record


@pytest.mark.parametrize("tap", [True, False], ids=["tapped", "untapped"])
@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("batch_callbacks", [1, 7, 256])
def test_50_chunks_in_one_tick_arrive_in_order(arm: Any, tap: bool, batch_callbacks: int) -> None:
    consumer = Consumer(every=0.05, depth=2)
    request = Request(one_tick(), arm=arm, consumer=consumer)
    for record in judge(
        request, tap=tap, in_place_frames=1, backlog_frames=2, batch_callbacks=batch_callbacks
    ):
        assert [token for got in record.requests[0].got for token in got.ids] == IDS


@pytest.mark.parametrize("tap", [True, False], ids=["tapped", "untapped"])
@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("merge_at", [1, 8, 64])
def test_what_waits_for_a_reader_that_has_stopped_is_bounded(
    arm: Any, tap: bool, merge_at: int
) -> None:
    """300 chunks, of which the reader takes one."""
    consumer = Consumer(stalls_after=1, stalls_until=30.0, depth=1)
    request = Request(many_ticks(), arm=arm, consumer=consumer)
    for record in judge(request, tap=tap, merge_at=merge_at, in_place_frames=0, backlog_frames=2):
        assert record.requests[0].most_chunks <= merge_at + 2
        assert record.requests[0].most_responses <= merge_at + 4


@pytest.mark.parametrize("tap", [True, False], ids=["tapped", "untapped"])
@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("after", [0.0, 0.001, 0.3])
def test_a_slow_reader_that_stops_is_let_go_at_once(arm: Any, tap: bool, after: float) -> None:
    """At the tick itself, right behind it, and while its chunks still wait."""
    consumer = Consumer(every=0.05, depth=2)
    request = Request(one_tick(abort_latency=0.0), arm=arm, consumer=consumer)
    stop = 0.1 + after
    for record in judge(
        request, Act("stop", at=stop), tap=tap, in_place_frames=1, backlog_frames=2
    ):
        landed = record.requests[0].landed
        assert landed is not None
        assert landed.time < stop + PROMPT_S
        got = [token for item in record.requests[0].got for token in item.ids]
        assert got == IDS[: len(got)]
