# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The simulation can fail: it finds each of `mutants` within a few hundred seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from . import run
from .draw import draw
from .mutants import MUTANTS, Mutant, applied

SEEDS_AT_MOST = 300
ORDERS_AT_MOST = 20


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    with run.warm():
        yield


@pytest.fixture(autouse=True)
def _livelock_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LIVELOCK_CPU_S", 1.0)


# A livelock is ended wherever it is, also within Trio, which is then not left in order.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_mutant_is_found(mutant: Mutant) -> None:
    if mutant.case is None:
        cases = map(draw, range(SEEDS_AT_MOST))
    else:
        cases = (replace(mutant.case, seed=seed) for seed in range(ORDERS_AT_MOST))
    with applied(mutant):
        assert any(map(run.judged, cases))


def test_sound_code_passes_the_cases_of_the_mutants() -> None:
    for mutant in MUTANTS:
        if mutant.case is not None:
            for seed in range(ORDERS_AT_MOST):
                assert run.judged(replace(mutant.case, seed=seed)) == []
