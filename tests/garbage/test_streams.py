# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""1,000 streams, half of them cancelled at random points: nothing of ours is left as garbage.

One choice each: with n > 1 SGLang 0.5.21 makes a cycle of its own (the frame of
``_stream_batch_responses`` and the task that ended in it), and the tail of our stream hangs on it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from compat.handover import Handover
from tests.fakes.script import (
    FINISH_LENGTH,
    EngineScript,
    Output,
    Retract,
    finish_error,
    tokens,
)
from tests.simulation import garbage, run
from tests.simulation.case import Act, Arm, Case, Consumer, Mode, Request, Verb
from tests.simulation.invariants import violations
from tests.simulation.play import play

STREAMS = 50
"""At a time."""

ROUNDS = 20

REFUSED = finish_error(500, "InternalServerError", "scripted: failed")

SCRIPTS = (
    EngineScript(outputs=tokens(8)),
    EngineScript(tokenize_delay=0.3, queue_delay=0.2, prefill_delay=0.1, outputs=tokens(4)),
    EngineScript(registration_delay=0.2, outputs=(Output(0.1, messages=50), *tokens(3))),
    EngineScript(
        outputs=(Output(0.1), Retract(0.1, queued=0.3), Output(0.1, finish=FINISH_LENGTH))
    ),
    EngineScript(outputs=(Output(0.1), Output(0.1, finish=REFUSED))),
    EngineScript(tokenize_delay=0.1, dispatch_error=ValueError("scripted: dispatch")),
    EngineScript(outputs=tokens(8), resists_cancel_for=2.0),
)

LEAVINGS: tuple[Verb, ...] = ("stop", "kill", "lose", "cancel owner")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with run.warm():
        yield


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_streams_leave_no_garbage_of_ours(number: int) -> None:
    record = play(a_round(number), search=garbage.ours_of_any_kind)
    assert record.garbage == []
    assert violations(record) == []


def test_the_search_finds_what_hangs_on_a_cycle() -> None:
    """A search that never finds anything would pass the tests above."""
    cycle: list[Any] = [Handover(merge_at=1)]
    cycle.append(cycle)
    del cycle
    assert garbage.ours_of_any_kind() == ["Handover"]


def a_round(number: int) -> Case:
    """`STREAMS` requests, of which every second one is left at a random moment."""
    chance = random.Random(number)
    modes: tuple[Mode, ...] = ("text",) if number % 2 else ("tokens", "native")
    arms: tuple[Arm, ...] = ("push", "pull")
    requests = tuple(
        Request(
            replace(chance.choice(SCRIPTS)),  # a script tells whose the rids are
            mode=chance.choice(modes),
            arm=chance.choice(arms),
            arrives=round(chance.uniform(0.0, 1.0), 3),
            consumer=Consumer(every=chance.choice((0.0, 0.0, 0.05))),
        )
        for _ in range(STREAMS)
    )
    acts = tuple(
        Act(
            chance.choice(LEAVINGS),
            index,
            at=round(requests[index].arrives + chance.uniform(0.0, 1.0), 3),
            hops=chance.randrange(4),
        )
        for index in range(0, STREAMS, 2)
    )
    return Case(
        number,
        requests,
        acts,
        tap=number % 4 < 2,
        in_place_frames=chance.choice((0, 4, 64)),
        merge_at=chance.choice((2, 64)),
    )
