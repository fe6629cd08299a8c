# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A few of the trials; ``make trials`` runs them all, beside the incumbent."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.trials.__main__ import describe
from tests.trials.cases import BY_NAME
from tests.trials.members import make_backing, open_members
from tests.trials.results import Results, table
from tests.trials.rolling import Rolling
from tests.trials.trial import Outcome, run_trial, wrong_text

FEW = ("grace over", "second SIGTERM", "kill -9 worker", "kill -9 scheduler")
"""A signal's two ways to migrate, and the two deaths."""


@pytest.mark.e2e
@pytest.mark.timeout(1800)  # six workers start in it, one after the other
async def test_no_answer_is_lost_whatever_takes_the_worker_away(tmp_path: Path) -> None:
    backing, length = make_backing(tmp_path, real=False, step_ms=8)
    cases = [BY_NAME[name] for name in FEW]
    source = random.Random(4)
    outcomes = []
    async with open_members("ours", backing) as members:
        line = [await members.start(cases[0]), await members.start(cases[1])]
        for number, case in enumerate(cases):
            outcome = await run_trial(
                members, line.pop(0), case, length=length, count=4, source=source
            )
            outcomes.append(outcome)
            if number + 1 < len(cases):
                following = cases[number + 2] if number + 2 < len(cases) else None
                line.append(await members.start(following))
    for case, outcome in zip(cases, outcomes, strict=True):
        assert outcome.wrong == [], describe(outcome)
        assert outcome.status == case.status, describe(outcome)
        assert outcome.orphans == 0
        assert outcome.on_victim >= 1
        assert outcome.migrations >= 1


def an_outcome(name: str, **values: object) -> Outcome:
    outcome = Outcome(name, streams=4, exact=4, status=0, right_status=True, exit_s=1.5)
    for field, value in values.items():
        setattr(outcome, field, value)
    return outcome


def test_sums_count_what_went_wrong() -> None:
    results = Results()
    results.outcomes["ours"] = [
        an_outcome("SIGTERM", migrations=2),
        an_outcome("SIGTERM", exact=3, wrong=["lost"], status=1, right_status=False, exit_s=2.5),
        an_outcome("kill -9 scheduler", orphans=1),
    ]
    results.rolling["ours"] = Rolling(requests=9, exact=8, wrong=["lost"])
    assert results.to_json()["trials"] == 3
    sums = results.to_json()["ours"]
    assert (sums["trials"], sums["exact"], sums["failed_requests"]) == (3, 2, 2)
    assert (sums["wrong_exit_status"], sums["orphans"]) == (1, 1)
    assert sums["cases"]["SIGTERM"]["exit_s"] == {"median": 2.0, "max": 2.5}
    assert not results.good
    cell = "7 of 8 exact; 2 migrated; gap 0.00 s; status 0 or 1; out in 2.0 s, 2.5 at most"
    assert f"| SIGTERM | 0 | {cell} |" in table(results)
    assert "8 of 9 exact" in table(results)


def test_table_has_a_column_for_each_implementation() -> None:
    results = Results()
    results.outcomes = {
        "ours": [an_outcome("SIGINT")],
        "incumbent": [an_outcome("SIGINT", exit_s=9.0)],
    }
    head, rule, row = (line.strip("| ").split(" | ") for line in table(results).splitlines())
    assert head[2:4] == ["ours", "incumbent"]
    assert len(head) == len(rule) == len(row)
    assert "out in 1.5 s" in row[2]
    assert "out in 9.0 s" in row[3]
    assert row[-1] == BY_NAME["SIGINT"].why
    assert results.good


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abcd", "4 of 5 tokens, differs at 4: '' for 'e'"),
        ("abde", "4 of 5 tokens, differs at 2: 'de' for 'cde'"),
        ("abbcde", "6 of 5 tokens, differs at 2: 'bcde' for 'cde'"),
    ],
)
def test_first_difference_is_told(text: str, found: str) -> None:
    assert wrong_text(text, "abcde") == found
