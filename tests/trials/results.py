# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Sums, the table, and the JSON that holds everything."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.trials.cases import CASES, Case
from tests.trials.rolling import Rolling
from tests.trials.trial import Outcome

SUMS = ("trials", "exact", "failed_requests", "wrong_exit_status", "orphans")


@dataclass(slots=True)
class Results:
    """All outcomes by implementation."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    rolling: dict[str, Rolling] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Ours in sum, the table, then each implementation: its sums, its cases, its trials."""
        by_name = {name: self._implementation(name) for name in self.outcomes}
        ours = by_name.get("ours", {})
        return {name: ours[name] for name in SUMS if name in ours} | {
            "settings": self.settings,
            "table": table(self).splitlines(),
            **by_name,
        }

    def _implementation(self, name: str) -> dict[str, Any]:
        outcomes = self.outcomes[name]
        rolling = self.rolling.get(name)
        stops = [*outcomes, *(rolling.stops if rolling else ())]
        return {
            "trials": len(outcomes),
            "exact": sum(not outcome.wrong for outcome in outcomes),
            "failed_requests": sum(len(outcome.wrong) for outcome in outcomes)
            + (len(rolling.wrong) if rolling else 0),
            "wrong_exit_status": sum(not outcome.right_status for outcome in stops),
            "orphans": sum(outcome.orphans for outcome in stops),
            "left_in_discovery": sum(outcome.left_in_discovery for outcome in stops),
            "cases": {
                case.name: sums(of_case)
                for case in CASES
                if (of_case := [one for one in outcomes if one.case == case.name])
            },
            "rolling": asdict(rolling) if rolling else None,
            "each": [outcome.to_json() for outcome in outcomes],
        }

    def write(self, path: Path) -> None:
        """After every trial, so that a run that is stopped has told what it saw."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")

    @property
    def good(self) -> bool:
        """Whether ours did all that was promised."""
        sums = self.to_json()
        return not any(sums.get(name) for name in SUMS[2:])


def sums(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One case's counts and times; pure."""
    exits = [outcome.exit_s for outcome in outcomes]
    return {
        "trials": len(outcomes),
        "streams": sum(outcome.streams for outcome in outcomes),
        "exact": sum(outcome.exact for outcome in outcomes),
        "migrations": sum(outcome.migrations for outcome in outcomes),
        "statuses": [outcome.status for outcome in outcomes],
        "wrong_exit_status": sum(not outcome.right_status for outcome in outcomes),
        "orphans": sum(outcome.orphans for outcome in outcomes),
        "left_in_discovery": sum(outcome.left_in_discovery for outcome in outcomes),
        "exit_s": {
            "median": round(statistics.median(exits), 3),
            "max": round(max(exits), 3),
        },
        "longest_gap_s": round(max(outcome.longest_gap_s for outcome in outcomes), 3),
    }


def table(results: Results) -> str:
    """Markdown, a column for each implementation; pure."""
    names = list(results.outcomes)
    head = ["case", "right status", *names, "what has to happen"]
    rows = [head, ["---"] * len(head)]
    for case in CASES:
        cells = [_cell(results.outcomes[name], case) for name in names]
        if any(cells):
            rows.append([case.name, str(case.status), *cells, case.why])
    if results.rolling:
        cells = [_rolling_cell(results.rolling.get(name)) for name in names]
        rows.append(["rolling restart", "0", *cells, "the same, one worker after the other"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(outcomes: Iterable[Outcome], case: Case) -> str:
    of_case = [outcome for outcome in outcomes if outcome.case == case.name]
    if not of_case:
        return ""
    total = sums(of_case)
    parts = []
    if case.streams:
        parts += [
            f"{total['exact']} of {total['streams']} exact",
            f"{total['migrations']} migrated",
            f"gap {total['longest_gap_s']:.2f} s",
        ]
    parts += [
        f"status {' or '.join(sorted({str(status) for status in total['statuses']}))}",
        f"out in {total['exit_s']['median']:.1f} s, {total['exit_s']['max']:.1f} at most",
    ]
    if total["orphans"]:
        parts.append(f"{total['orphans']} orphans")
    return "; ".join(parts)


def _rolling_cell(rolling: Rolling | None) -> str:
    if rolling is None:
        return ""
    statuses = " or ".join(sorted({str(stop.status) for stop in rolling.stops}))
    return (
        f"{rolling.exact} of {rolling.requests} exact; {rolling.migrations} migrated; "
        f"{len(rolling.stops)} stops, status {statuses}"
    )
