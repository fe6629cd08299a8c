# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""2,000 seeds of the simulation; ``make simulate SEEDS=…`` runs any number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from . import run
from .case import Case, Request
from .coverage import SITUATIONS
from .draw import SEEDS_PER_ENGINE_BUILD, draw
from .play import play
from .timeline import text_of

SEEDS = 2000
RUNS_AT_LEAST = 5


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with run.warm():
        yield


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_ENGINE_BUILD))
def test_seeds_violate_nothing(first: int) -> None:
    found = _batch(first).failures
    if found:
        seed = min(found)
        pytest.fail(f"{run.report(seed)}\nreplay: python -m tests.simulation --replay {seed}")


@pytest.mark.timeout(300)
def test_seeds_come_into_every_situation() -> None:
    """Each of them in several runs; what is not drawn is not tested."""
    covered: Counter[str] = Counter()
    for first in range(0, SEEDS, SEEDS_PER_ENGINE_BUILD):
        covered += _batch(first).covered
    assert {name: covered[name] for name in SITUATIONS if covered[name] < RUNS_AT_LEAST} == {}


@cache
def _batch(first: int) -> run.Batch:
    return run.batch(range(first, first + SEEDS_PER_ENGINE_BUILD))


@pytest.mark.parametrize("seed", [3, 61, 70, 130])
def test_a_seed_replays_exactly(seed: int) -> None:
    told = text_of(play(draw(seed), verbose=True))
    # What would differ between processes: addresses, hence the order of sets of objects.
    ballast = [object() for _ in range(12345)]
    again = text_of(play(draw(seed), verbose=True))
    del ballast
    assert told == again
    assert told.count("\n") > 10


def test_seeds_differ_from_each_other() -> None:
    cases = [draw(seed) for seed in range(200)]
    assert len({repr(_without_seed(case)) for case in cases}) == len(cases)


def _without_seed(case: Case) -> tuple[tuple[Request, ...], object]:
    return case.requests, case.acts
