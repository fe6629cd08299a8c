# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Clients that leave, at whatever moment, through the real frontend by closing their sockets."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
import trio

from tests.e2e.served import Served
from tests.e2e.slow_tokenizer import STUCK_S
from trio_worker.quickstart.chat import Answer
from trio_worker.quickstart.recitation import PASSAGE
from trio_worker.standin.events import read_events

pytestmark = [pytest.mark.e2e]

CANCELS = 1000
AT_ONCE = 32
"""Clients at a time."""

WARM_UP = 200
"""Cancels after which memory is compared: pools and caches are full by then."""

GROWTH = 24 * 2**20
"""Bytes that a worker may grow over the rest: under 32 kB a request, were all of it a leak."""


@dataclass(frozen=True, slots=True)
class Departure:
    """One client and when it leaves."""

    question: str
    choices: int
    tokens: int
    patience: float
    """Seconds from the request to its departure."""


def draw(source: random.Random, number: int) -> Departure:
    """From before the registration to behind the last chunk; some slow, some with n = 3."""
    tokens = source.choice((5, 40, 200))
    return Departure(
        question=f"{source.choice(('', '', 'SLOW ', 'LATE '))}number {number}",
        choices=source.choice((1, 1, 1, 3)),
        tokens=tokens,
        # A token takes 10 ms; a third more than the whole stream at most.
        patience=source.choice((0.05, 0.3, 1.3)) * source.random() * tokens * 0.01 + 0.005,
    )


async def leave(served: Served, departure: Departure) -> bool:
    """Trio. Whether the client had to go before its answer was complete."""
    options = {"n": departure.choices, "temperature": 0.001} if departure.choices > 1 else {}
    answer = Answer()
    with trio.move_on_after(departure.patience):
        await served.ask(departure.question, max_tokens=departure.tokens, answer=answer, **options)
    # What did come was right, and nobody had an error.
    assert answer.errors == []
    expected = served.backing.expected(departure.question, departure.tokens)
    for text in answer.texts.values():
        assert expected.startswith(text)
    return not answer.done


async def leave_all(served: Served, departures: list[Departure]) -> int:
    """Trio. All departures, `AT_ONCE` at a time; how many went early."""
    early: list[bool] = []
    room = trio.CapacityLimiter(AT_ONCE)

    async def one(departure: Departure) -> None:
        async with room:
            early.append(await leave(served, departure))

    async with trio.open_nursery() as nursery:
        for departure in departures:
            nursery.start_soon(one, departure)
    return sum(early)


async def leave_nothing_behind(served: Served, departures: list[Departure]) -> None:
    """Trio. All departures; then the engine is idle, and memory is as it was once warm."""
    early = await leave_all(served, departures[:WARM_UP])
    await served.wait_idle()
    before = served.resident_bytes()
    early += await leave_all(served, departures[WARM_UP:])
    await served.wait_idle()
    assert early > len(departures) / 2
    assert served.resident_bytes() - before < GROWTH
    inside = await served.inside()
    # How many were not closed in time, and so detached for a while, tells of the machine.
    assert inside["feeders"]["adrift"] == []
    assert inside["unhandled_asyncio_errors"] == 0


@pytest.mark.timeout(400)
async def test_1000_clients_leave_at_random_moments(stand_in: Served) -> None:
    source = random.Random(20_26)
    await leave_nothing_behind(stand_in, [draw(source, number) for number in range(CANCELS)])
    log = stand_in.backing.log
    arrived = [one["rid"] for one in read_events(log, "arrive")]
    await stand_in.wait_idle()
    finished = read_events(log, "finish")
    assert sum(one["type"] == "abort" for one in finished) > CANCELS / 4
    # Exactly one abort each: none twice, and none that left a request to run on.
    assert [one for one in read_events(log, "abort") if one["repeated"]] == []
    endings = Counter(one["rid"] for one in finished)
    assert {endings[rid] for rid in arrived} == {1}
    answer = await stand_in.ask("still there", max_tokens=30)
    assert answer.text == stand_in.backing.expected("still there", 30)


def draw_recitation(source: random.Random, number: int) -> Departure:
    """The same on the real engine, at its pace."""
    return Departure(
        question=f"{source.choice(('', '', 'SLOW ', 'STUCK '))}Recite. {number}",
        choices=source.choice((1, 1, 1, 3)),
        tokens=source.choice((5, 40, 400)),
        patience=source.choice((0.05, 0.3, 1.0)) * source.random() + 0.005,
    )


@pytest.mark.timeout(400)
async def test_1000_clients_of_the_real_engine_leave(slow_served: Served) -> None:
    source = random.Random(7)
    departures = [draw_recitation(source, number) for number in range(CANCELS)]
    await leave_nothing_behind(slow_served, departures)
    asked = trio.current_time()
    answer = await slow_served.ask("STUCK Recite.", max_tokens=30)
    assert answer.text == PASSAGE[:30]
    assert trio.current_time() - asked >= STUCK_S  # it really is slow
