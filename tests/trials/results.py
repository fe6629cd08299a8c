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
    """Markdown, both columns; pure."""
    names = list(results.outcomes)
    columns = [f"{name}: {what}" for name in names for what in COLUMNS]
    head = ["case", "right status", *columns, "what has to happen"]
    rows = [head, ["---"] * len(head)]
    for case in CASES:
        cells = [cell for name in names for cell in _cells(results.outcomes[name], case)]
        if any(cells):
            rows.append([case.name, str(case.status), *cells, case.why])
    for name in names:
        if (rolling := results.rolling.get(name)) is not None:
            rows.append(_rolling_row(name, rolling, len(head)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


COLUMNS = ("exact answers", "migrations", "status", "exit s (median, max)", "gap s", "orphans")


def _cells(outcomes: Iterable[Outcome], case: Case) -> list[str]:
    of_case = [outcome for outcome in outcomes if outcome.case == case.name]
    if not of_case:
        return [""] * len(COLUMNS)
    total = sums(of_case)
    statuses = sorted({str(status) for status in total["statuses"]})
    return [
        f"{total['exact']} of {total['streams']}" if case.streams else "-",
        str(total["migrations"]) if case.streams else "-",
        ", ".join(statuses),
        f"{total['exit_s']['median']:.1f}, {total['exit_s']['max']:.1f}",
        f"{total['longest_gap_s']:.2f}" if case.streams else "-",
        str(total["orphans"]),
    ]


def _rolling_row(name: str, rolling: Rolling, width: int) -> list[str]:
    text = (
        f"{name}: {rolling.exact} of {rolling.requests} answers exact over "
        f"{len(rolling.stops)} stops, {rolling.migrations} migrations"
    )
    return ["rolling restart", "0", text, *[""] * (width - 3)]
