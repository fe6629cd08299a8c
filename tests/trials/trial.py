# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One worker taken away under streams, and what everybody saw."""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import trio

from tests.e2e.served import living
from tests.trials.cases import Case
from tests.trials.members import Member, Members
from trio_worker.quickstart.chat import Answer, chat

EXIT_S = 60.0
"""Seconds that a worker gets to exit, whatever its own bounds are: more is a failure."""

ANSWER_S = 180.0
"""Seconds that a client waits for its whole answer."""

POLL_S = 0.02

QUESTION = "Recite the passage, please. {}"


@dataclass(slots=True)
class Outcome:
    """What came of one trial."""

    case: str
    streams: int = 0
    exact: int = 0
    wrong: list[str] = field(default_factory=list)
    """What was wrong with each answer that was not exact."""
    at: list[int] = field(default_factory=list)
    """Tokens that each client had when it happened."""
    on_victim: int = 0
    """Streams that the worker had when it happened."""
    migrations: int = 0
    longest_gap_s: float = 0.0
    """Between two pieces of text, over all streams."""
    status: int | None = None
    """Exit status; None: had to be killed."""
    right_status: bool = False
    exit_s: float = 0.0
    """Seconds from the first signal to the worker's exit."""
    after_last_s: float | None = None
    """Seconds from the end of the last answer to the worker's exit."""
    orphans: int = 0
    """Descendants that lived longer than the case allows."""
    left_in_discovery: int = 0
    """Entries of the worker in discovery after its exit."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(slots=True)
class Stream:
    """One client."""

    question: str
    expected: str
    answer: Answer = field(default_factory=Answer)
    ended: float = 0.0

    async def run(self, members: Members, real: bool) -> None:
        """Trio. Ask, and read to the end."""
        room = len(self.expected) + (100 if real else 0)
        with trio.move_on_after(ANSWER_S):
            await chat(
                members.cluster.port,
                members.backing.name,
                self.question,
                answer=self.answer,
                max_tokens=room,
                temperature=0,
            )
        self.ended = trio.current_time()

    def fault(self) -> str | None:
        """None if the answer is exact."""
        answer = self.answer
        if answer.errors:
            return f"{answer.status}: {answer.errors[0][:200]}"
        if not answer.done:
            return f"no end after {len(answer.text)} of {len(self.expected)} tokens"
        if answer.text != self.expected:
            return wrong_text(answer.text, self.expected)
        return None

    def longest_gap(self) -> float:
        """Seconds."""
        return max((b - a for a, b in pairwise(self.answer.arrivals)), default=0.0)


def wrong_text(text: str, expected: str) -> str:
    """Where and how a text leaves the expected one; pure."""
    at = next(
        (i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b),
        min(len(text), len(expected)),
    )
    return (
        f"{len(text)} of {len(expected)} tokens, differs at {at}: "
        f"{text[at : at + 20]!r} for {expected[at : at + 20]!r}"
    )


async def run_trial(
    members: Members, victim: Member, case: Case, *, length: int, count: int, source: random.Random
) -> Outcome:
    """Trio. Take `victim` away as `case` says, under `count` streams of `length` tokens."""
    outcome = Outcome(case.name)
    before = await members.migrations()
    streams: list[Stream] = []
    real = members.backing.name == "recitation"
    async with trio.open_nursery() as nursery:
        for number in range(count if case.streams else 0):
            question = QUESTION.format(number)
            stream = Stream(question, members.backing.expected(question, length))
            streams.append(stream)
            nursery.start_soon(stream.run, members, real)
        if streams:
            await _wait_for_moment(streams[0], int(length * source.uniform(*case.share)))
            outcome.on_victim = int(await victim.in_flight())
        outcome.at = [len(stream.answer.text) for stream in streams]
        family = victim.family()
        await take_away(victim, case, outcome)
        exited = trio.current_time()
        await look_around(victim, family, case, outcome)
    if streams:
        outcome.after_last_s = exited - max(stream.ended for stream in streams)
    outcome.streams = len(streams)
    faults = [stream.fault() for stream in streams]
    outcome.exact = faults.count(None)
    outcome.wrong = [fault for fault in faults if fault is not None]
    outcome.longest_gap_s = max((stream.longest_gap() for stream in streams), default=0.0)
    outcome.migrations = int(await members.migrations() - before)
    outcome.right_status = outcome.status == case.status
    return outcome


async def _wait_for_moment(stream: Stream, tokens: int) -> None:
    with trio.move_on_after(ANSWER_S):
        while len(stream.answer.text) < tokens and not stream.ended:
            await trio.sleep(POLL_S)


async def take_away(victim: Member, case: Case, outcome: Outcome) -> None:
    """Trio. Do it, and wait for the exit."""
    process = victim.process
    started = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(case.stop, process)
        with trio.move_on_after(EXIT_S):
            outcome.status = await process.popen.wait()
            outcome.exit_s = time.monotonic() - started
            nursery.cancel_scope.cancel()
    if outcome.status is None:
        process.popen.kill()
        await process.popen.wait()
        outcome.exit_s = EXIT_S


async def look_around(victim: Member, family: list[int], case: Case, outcome: Outcome) -> None:
    """Trio. What has the victim left behind? A lease's entries go with the lease, after a kill."""
    with trio.move_on_after(case.linger_s):
        while living(family) or victim.still_registered():
            await trio.sleep(POLL_S)
    outcome.orphans = len(living(family))
    outcome.left_in_discovery = len(victim.still_registered())
