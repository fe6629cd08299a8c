# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Many seeds in one process."""

from __future__ import annotations

import gc
import signal
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from . import garbage, rig
from .case import Case
from .coverage import situations
from .draw import ENGINE_BUILDS, SEEDS_PER_ENGINE_BUILD, draw
from .invariants import violations
from .play import play
from .timeline import text_of

GARBAGE_EVERY = 4
"""Each so many seeds the run is searched for cycles: looking takes as long as running."""

LIVELOCK_CPU_S = 20.0
"""Seconds of processor time after which a run is given up; one takes some 20 ms."""


def warm_up() -> None:
    """Load what is loaded late, and exempt all of it from the searches for garbage."""
    rig.publish_again()
    for build in ENGINE_BUILDS:
        play(draw(build * SEEDS_PER_ENGINE_BUILD), search=garbage.ours)
    garbage.forget()


@contextmanager
def warm() -> Iterator[None]:
    """`warm_up` for the length of a block, for tests."""
    warm_up()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass
class Batch:
    """What some seeds have shown."""

    failures: dict[int, list[str]] = field(default_factory=dict)
    """Seed -> what its run violates, for the seeds that violate something."""
    covered: Counter[str] = field(default_factory=Counter)
    """Situation -> runs that came into it."""


def batch(seeds: Iterable[int]) -> Batch:
    """Run `seeds`. After `warm_up`."""
    done = Batch()
    for seed in seeds:
        if texts := judged(draw(seed), done.covered):
            done.failures[seed] = texts
    return done


def judged(case: Case, covered: Counter[str] | None = None) -> list[str]:
    """What the run of `case` violates. In the main thread, as it uses a timer's signal."""
    try:
        with _livelock_ends():
            search = garbage.ours if case.seed % GARBAGE_EVERY == 0 else None
            record = play(case, search=search)
            if covered is not None:
                covered.update(situations(record))
            return violations(record)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [f"the run itself failed:\n{''.join(traceback.format_exception(error))}"]


class Livelock(BaseException):
    """A run that uses up its time in this process: virtual time does not go on."""


@contextmanager
def _livelock_ends() -> Iterator[None]:
    """Raise `Livelock` wherever the run is, until it is out of it."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Livelock(f"no end after {LIVELOCK_CPU_S} s of processor time")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIVELOCK_CPU_S, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def report(seed: int) -> str:
    """The timeline of `seed`, told anew, and what it violates."""
    record = play(draw(seed), search=garbage.ours, verbose=True)
    return "\n".join([text_of(record), *(f"VIOLATED {text}" for text in violations(record))])
