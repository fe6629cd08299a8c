# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What is recorded of a request: a handful of events, whatever becomes of it, never per chunk.

The request path as the worker wires it, around the fake engine of ``tests/semantics``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
from tests.fakes.engine import FakeEngine
from tests.fakes.script import NEVER, EngineScript, tokens
from tests.semantics.harness import Implementation, Run
from tests.semantics.ours import Ours, OursSubject
from tests.semantics.scenario import Scenario, one, shutdown, stop
from trio_worker.recorder import Recorder


class Recorded(Ours):
    """Ours, with a flight recorder."""

    subject: OursSubject

    @asynccontextmanager
    async def open(self, run: Run) -> AsyncIterator[tuple[FakeEngine, OursSubject]]:
        """Trio."""
        async with super().open(run) as (engine, self.subject):
            self.subject.live.recorder = Recorder()
            yield engine, self.subject


async def flight(scenario: Scenario) -> tuple[OursSubject, list[str]]:
    """What was recorded of the first request, in words."""
    opener = Recorded()
    await Implementation(opener, "recorded").run(scenario)
    recorded = opener.subject.live.recorder.events()
    return opener.subject, [
        event.what
        if event.detail is None or event.what in ("received", "submitted")
        else f"{event.what}: {event.detail}"
        for event in recorded
        if event.lane == 1
    ]


BEGINNING = ["received", "submitted", "registered", "dispatched", "first token"]
ENDLESS = EngineScript(outputs=tokens(999))


@pytest.mark.parametrize("length", [3, 300])
async def test_a_request_that_ends_by_itself(length: int, autojump_clock: MockClock) -> None:
    subject, told = await flight(one(EngineScript(outputs=tokens(length))))
    assert told == [*BEGINNING, "stream ended", "ended: complete"]
    assert subject.live.migrated == 0


async def test_a_client_that_leaves(autojump_clock: MockClock) -> None:
    subject, told = await flight(one(ENDLESS, stop(1.05)))
    assert told == [
        *BEGINNING,
        "stop seen: client",
        "abort ordered",
        "abort sent",
        "abort confirmed",
        "drain ended: done",
        "ended: client left",
    ]
    counts = subject.aborts.counts
    assert (counts.ordered, counts.sent, counts.confirmed, counts.gone) == (1, 1, 1, 0)
    assert (subject.live.drains_ended, subject.live.drains_timed_out) == (1, 0)


async def test_a_client_that_leaves_before_the_dispatch(autojump_clock: MockClock) -> None:
    script = EngineScript(tokenize_delay=0.5, outputs=NEVER)
    subject, told = await flight(one(script, stop(0.1)))
    assert told == [
        *BEGINNING[:3],
        "stop seen: client",
        "abort ordered",
        "dispatched",
        "abort sent",
        "first token",  # the last chunk, which tells of the abort
        "abort confirmed",
        "drain ended: done",
        "ended: client left",
    ]
    assert subject.aborts.pending == set()


async def test_a_stream_that_resists(autojump_clock: MockClock) -> None:
    script = EngineScript(outputs=NEVER, ignored_aborts=math.inf, resists_cancel_for=30.0)
    subject, told = await flight(one(script, stop(0.25), settle=1.0))
    assert told == [
        *BEGINNING[:4],
        "stop seen: client",
        "abort ordered",
        "abort sent",
        "drain ended: timed out",
        "detached",
        "ended: client left",
    ]
    assert (subject.live.drains_ended, subject.live.drains_timed_out) == (0, 1)
    assert subject.feeders.detached == 1


async def test_a_worker_that_migrates(autojump_clock: MockClock) -> None:
    subject, told = await flight(one(ENDLESS, shutdown(1.05)))
    assert told == [
        *BEGINNING,
        "stop seen: worker",
        "abort ordered",
        "abort sent",
        "ended: migrated",
    ]
    assert subject.live.migrated == 1


async def test_an_engine_that_refuses(autojump_clock: MockClock) -> None:
    _, told = await flight(one(EngineScript(dispatch_error=ValueError("no"))))
    assert told == [*BEGINNING[:3], "stream ended: ValueError", "ended: ValueError"]


@pytest.mark.parametrize("choices", [1, 3])
async def test_at_most_a_dozen_events_however_long_it_runs(
    choices: int, autojump_clock: MockClock
) -> None:
    _, told = await flight(one(ENDLESS, stop(50.0), n=choices))
    assert len(told) <= 12
