# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""docs/shutdown.md: numbers, reasons, settings and log lines are those of the code."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from . import pages

PAGE = (pages.DOCS / "shutdown.md").read_text()
PATHS = (pages.ROOT / "trio_worker" / "shutdown" / "paths.py").read_text()
PLAN = (pages.ROOT / "trio_worker" / "shutdown" / "plan.py").read_text()
CLI = (pages.ROOT / "trio_worker" / "cli.py").read_text()


def table(head: str) -> list[list[str]]:
    """The cells of the table under a head line."""
    _, _, rest = PAGE.partition(f"\n{head}\n")
    assert rest, head
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def class_body(name: str) -> list[ast.stmt]:
    return next(
        node.body
        for node in ast.parse(PATHS).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )


def bounds() -> dict[str, float]:
    """The defaults of `Bounds` that are plain numbers, in seconds."""
    return {
        ast.unparse(node.target): node.value.value
        for node in class_body("Bounds")
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant)
    }


def phases() -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for node in class_body("Phase"):
        if isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
    return found


def test_bounds_of_the_phases() -> None:
    known = bounds()
    rows = table("| phase | what | bound | ends when |")
    told = {row[0].partition(" ")[2]: row[2] for row in rows}
    assert "ends 4 s before they are killed" in PAGE
    assert "CHILD_MARGIN_S: Final = 4.0\n" in PATHS
    for name in ("withdraw", "migrate", "stop", "engine", "deferred", "exit"):
        assert float(told[name]) == known[name], name
    assert told["drain"] == "grace: 5"
    numbers = {row[0] for row in rows}
    assert numbers == {f"{number} {name}" for number, name in phases().values()}
    assert told["group"] == told["children"] == "total less reserves"


def test_reserves() -> None:
    code = re.search(r"least = \{(.*?)\}", PATHS, re.DOTALL)
    assert code is not None
    wanted = {
        name.lower(): float(value) for name, value in re.findall(r"Phase\.(\w+): ([\d.]+)", code[1])
    }
    told = re.search(r"keep a reserve:\s+(.*?)\. The drain", PAGE, re.DOTALL)
    assert told is not None
    assert {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", told[1])} == wanted


def test_other_times_of_the_plan() -> None:
    worker = (pages.ROOT / "trio_worker" / "worker.py").read_text()
    signals = (pages.ROOT / "compat" / "signals.py").read_text()
    assert "QUIET_S: Final = 0.3\n" in PLAN
    assert "no request for 0.3" in PAGE
    assert "LAST_RESORT_SLACK_S = 1.5\n" in worker
    assert "1.5 s after the total deadline" in PAGE
    assert "_GIL_SECONDS: Final = 3.0\n" in signals
    assert "SAME_REQUEST_SECONDS: Final = 1.0\n" in signals
    assert "_DUMP_SECONDS: Final = 1.0\n" in signals


def test_reasons_and_their_paths() -> None:
    numbers = {name: number for name, (number, _) in phases().items()}
    code = PATHS[PATHS.index("_FROM_ENGINE") : PATHS.index("def path_of")]
    names = {
        "_FROM_ENGINE": "ENGINE DEFERRED EXIT",
        "_FROM_STOP": "STOP ENGINE DEFERRED EXIT",
    }
    paths: dict[str, list[int]] = {}
    for reason, path in re.findall(r"StopReason\.(\w+): (.*?),\n", code):
        for name, stands_for in names.items():
            path = path.replace(f"*{name}", stands_for).replace(name, stands_for)
        paths[reason] = [numbers[word] for word in re.findall(r"[A-Z]{4,}", path)]
    texts = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in class_body("StopReason")
        if isinstance(node, ast.Assign)
    }
    rows = table("| reason | in the log | phases | status |")
    told = {
        row[0].strip("`"): (row[1], [int(digit) for digit in re.findall(r"\d", row[2])])
        for row in rows
    }
    assert told == {reason: (texts[reason], path) for reason, path in paths.items()}
    asked = re.search(r"ASKED_REASONS: Final = frozenset\((.*?)\)", PATHS, re.DOTALL)
    assert asked is not None
    assert {row[0].strip("`") for row in rows if row[3] == "0"} == set(
        re.findall(r"StopReason\.(\w+)", asked[1])
    )


def test_exit_statuses() -> None:
    statuses = {
        ast.literal_eval(node.value)
        for node in class_body("ExitStatus")
        if isinstance(node, ast.Assign)
    }
    assert {int(row[0]) for row in table("| status | meaning |")} == statuses


def test_flags_and_their_variables() -> None:
    in_code = dict(re.findall(r'_Flag\(\s*"(--[\w-]+)",\s*(?:#.*\s*)?"(\w+)"', CLI))
    rows = table("| flag | variable | unit | default | what |")
    told = {row[0].partition(",")[0].strip("`"): row[1].strip("`") for row in rows}
    assert told == in_code
    defaults = dict(re.findall(r"^    (\w+): [^=\n]+ = (.+)$", CLI, re.MULTILINE))
    told_defaults = {row[0].partition(",")[0].strip("`"): row[3] for row in rows}
    assert told_defaults["--shutdown-timeout"] == f"{float(defaults['shutdown_timeout']):g}"
    assert told_defaults["--gc-policy"] == ast.literal_eval(defaults["gc_policy"])
    assert told_defaults["--stand-in-scheduler"] == "none"
    assert defaults["stand_in_scheduler"] == "None"
    assert defaults["tap"] == "True"


def test_dynamos_variables_are_those_that_the_code_speaks_of() -> None:
    code = pages.source()
    for row in table("| variable | unit | default | what |"):
        for name in re.findall(r"`(\w+)`", row[0]):
            assert name in code, name


def test_budgets_leave_each_phase_its_bound() -> None:
    known = bounds()
    others = sum(
        known[name] for name in ("withdraw", "migrate", "stop", "engine", "deferred", "exit")
    )
    assert f"total (`--shutdown-timeout`) ≥ `G` + {others:g}," in PAGE
    rows = table("| answers | grace | total | terminationGracePeriodSeconds |")
    for _, grace, total, patience in rows:
        assert float(total) >= float(grace) + others
        assert float(patience) >= float(total) + 5


LINES = [row[0].strip("`") for row in table("| line | level | when |")]
SOURCE = pages.source()


@pytest.mark.parametrize("line", LINES)
def test_a_line_to_grep_is_in_the_code(line: str) -> None:
    for part in re.split(r"…|; ", line):
        assert part in SOURCE, part


def test_a_line_that_is_kept_is_the_incumbents() -> None:
    # Read from the folder, so that nothing slow is imported.
    import importlib.util

    spec: Any = importlib.util.find_spec("dynamo.sglang")
    incumbent = "\n".join(
        file.read_text()
        for folder in spec.submodule_search_locations
        for file in (
            *pages.Path(folder).rglob("*.py"),
            *(pages.Path(folder).parent / "common" / "utils").rglob("*.py"),
        )
    )
    kept = [row[0].strip("`") for row in table("| line | level | when |") if "*kept*" in row[2]]
    assert kept
    for line in kept:
        for part in line.split("…"):
            assert part in incumbent, part


def test_what_a_look_inside_tells_of_a_request() -> None:
    inside = (pages.ROOT / "trio_worker" / "inside.py").read_text()
    keys = re.findall(r'^        "(\w+)":', inside.partition("def view")[0], re.MULTILINE)
    told = re.search(r"line for each request: (.*?)\.", PAGE, re.DOTALL)
    assert told is not None
    words = re.findall(r"\w+", told[1])
    assert {key.partition("_")[0] for key in keys} <= set(words)
    assert 'ROUTE = "inside"\n' in inside
    request = (pages.ROOT / "trio_worker" / "requests" / "request.py").read_text()
    for phase in ("streaming", "draining"):
        assert f'"{phase}"' in request
