# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""docs/metrics.md and the dashboard: the figures that the code shows, and no others."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from dynamo import prometheus_names

from . import pages

PAGE = (pages.DOCS / "metrics.md").read_text()
CODE = (pages.ROOT / "trio_worker" / "metrics.py").read_text()
DASHBOARD: dict[str, Any] = json.loads((pages.DOCS / "deploy" / "grafana.json").read_text())
PREFIX = prometheus_names.name_prefix.COMPONENT
HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


def rows(head: str) -> list[list[str]]:
    """The cells of the table under a head line."""
    _, _, rest = PAGE.partition(f"\n{head}\n")
    assert rest, head
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


OURS = {row[0]: row[1:] for row in rows("| metric | type | unit | label | meaning |")}
THEIRS = {row[0]: row[1:] for row in rows("| metric | type | unit | meaning |")}


def in_code() -> dict[str, list[str]]:
    """The same cells, from the source: importing it would import SGLang."""
    tuples = next(
        node.value
        for node in ast.parse(CODE).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "METRICS"
    )
    found = {}
    assert isinstance(tuples, ast.Tuple)
    for call in tuples.elts:
        assert isinstance(call, ast.Call)
        name, kind, unit, help_text, _read, *label = call.args
        given = (
            ast.literal_eval(name)
            if isinstance(name, ast.Constant)
            else prometheus_names.frontend_perf.EVENT_LOOP_DELAY_SECONDS
        )
        found[f"{PREFIX}_{given}"] = [
            ast.literal_eval(kind),
            ast.literal_eval(unit),
            ast.literal_eval(label[0]) if label else "–",  # noqa: RUF001 (the page's dash)
            ast.literal_eval(help_text),
        ]
    return found


def test_the_table_is_the_codes() -> None:
    assert in_code() == OURS


def test_those_of_the_incumbent_exist() -> None:
    known = {
        f"{PREFIX}_{value}"
        for name, value in vars(prometheus_names.work_handler).items()
        if name.isupper()
    }
    assert set(THEIRS) <= known


def expressions() -> list[str]:
    found = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.extend(value for key, value in node.items() if key == "expr")
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(DASHBOARD)
    return found


def test_the_dashboard_uses_what_is_documented_and_nothing_else() -> None:
    used = {name for text in expressions() for name in re.findall(r"\b[a-z]\w*_\w+(?=\{)", text)}
    histograms = {name for name, cells in (OURS | THEIRS).items() if cells[0] == "histogram"}
    for name in used:
        base = HISTOGRAM.sub("", name)
        assert (base in histograms) == (base != name), name
        assert base in OURS | THEIRS, name
    # All of ours can be seen there.
    assert {HISTOGRAM.sub("", name) for name in used} >= set(OURS)


def test_every_selector_is_a_workers() -> None:
    for text in expressions():
        for selector in re.findall(r"\{([^}]*)\}", text):
            assert 'dynamo_namespace="$namespace"' in selector, text
            assert 'worker_id=~"$worker"' in selector, text


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
