# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Every worker replaced in turn, again and again, while clients ask without a pause."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from tests.trials.cases import BY_NAME
from tests.trials.members import Member, Members, Say
from tests.trials.trial import Outcome, Stream, look_around, take_away

CASE = BY_NAME["SIGTERM"]


@dataclass(slots=True)
class Rolling:
    """What came of it."""

    requests: int = 0
    exact: int = 0
    wrong: list[str] = field(default_factory=list)
    migrations: int = 0
    stops: list[Outcome] = field(default_factory=list)


async def run_rolling(
    members: Members,
    pair: list[Member],
    *,
    rounds: int,
    clients: int,
    length: int,
    say: Say,
) -> Rolling:
    """Trio. Replace both of `pair`, `rounds` times, under `clients` clients in closed loop.

    A new worker serves before an old one is told to go, so there are always two. An answer takes
    seconds and a replacement tens of them: no answer meets more stops than the frontend may
    migrate it.
    """
    rolling = Rolling()
    before = await members.migrations()
    stopping = trio.Event()
    real = members.backing.name == "recitation"

    async def client(number: int) -> None:
        asked = 0
        while not stopping.is_set():
            question = f"Client {number}, request {asked}."
            stream = Stream(question, members.backing.expected(question, length))
            await stream.run(members, real)
            asked += 1
            rolling.requests += 1
            fault = stream.fault()
            if fault is None:
                rolling.exact += 1
            else:
                rolling.wrong.append(fault)

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(client, number)
        for step in range(rounds * len(pair)):
            pair.append(await members.start(CASE))
            victim = pair.pop(0)
            outcome = Outcome(CASE.name, on_victim=int(await victim.in_flight()))
            family = victim.family()
            await take_away(victim, CASE, outcome)
            await look_around(victim, family, CASE, outcome)
            outcome.right_status = outcome.status == CASE.status
            rolling.stops.append(outcome)
            say(
                f"rolling restart {step + 1} of {rounds * len(pair)}: {outcome.on_victim} streams "
                f"on it, status {outcome.status} after {outcome.exit_s:.1f} s; "
                f"{rolling.exact} of {rolling.requests} answers exact so far"
            )
        stopping.set()
    rolling.migrations = int(await members.migrations() - before)
    return rolling
