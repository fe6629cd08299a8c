# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Nothing of the incumbent is missing, and docs/parity.md says what the script finds."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.parity.reasons import REASONS
from tests.parity.sources import Module, variables
from tests.parity.table import recorded_rows, row

ROOT = Path(__file__).parents[2]
ROLES = {*(f"R{number}" for number in range(1, 17)), "R6d", "all"}


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    """``make parity``, with the page held to what it finds; all roles of both workers start."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.parity", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads((ROOT / "build" / "parity.json").read_text())
    return found


def test_nothing_is_missing(table: dict[str, Any]) -> None:
    assert table["missing"] == []
    assert {row["role"] for row in table["rows"]} == ROLES
    assert {"endpoint", "engine route", "flag", "environment variable", "metric"} <= {
        row["kind"] for row in table["rows"]
    }


def test_no_cell_is_empty(table: dict[str, Any]) -> None:
    assert all(all(row.values()) for row in table["rows"])
    for line in (ROOT / "docs" / "parity.md").read_text().splitlines():
        if line.startswith("|"):
            assert all(cell.strip() for cell in line.strip("|").split("|")), line


def test_every_reason_is_needed(table: dict[str, Any]) -> None:
    given = {row["reason"] for row in table["rows"]}
    told = {one.why for one in REASONS if one.documented is None or one.documented.exists()}
    assert told <= given


@pytest.mark.parametrize(
    ("kind", "name", "incumbent", "ours", "verdict"),
    [
        ("endpoint", "backend.generate", "labels: none", "labels: none", "same"),
        ("endpoint", "backend.generate", "labels: none", None, "missing"),
        ("endpoint", "backend.generate", "labels: none", "labels: model=m", "missing"),
        ("endpoint", "backend.lease_probe", None, "labels: none", "explained"),
        ("endpoint", "backend.lease_probe", "labels: none", None, "missing"),
        ("endpoint", "backend.other", None, "labels: none", "missing"),
        ("flag", "--shutdown-timeout", None, "ours", "explained"),
        ("flag", "--on-no-page", None, "ours", "missing"),
        ("flag", "--tp", "SGLang", "taken", "missing"),
    ],
)
def test_what_differs_is_missing_unless_explained(
    kind: str, name: str, incumbent: str | None, ours: str | None, verdict: str
) -> None:
    assert row("R9", kind, name, incumbent, ours).verdict == verdict


def test_what_the_runtime_shows_goes_with_what_is_served() -> None:
    served = {("endpoint", "parity.backend.generate"): "labels: none"}
    rows = list(recorded_rows({"R9": {"incumbent": served, "ours": {}}}))
    assert {one.verdict for one in rows} == {"missing"}
    assert ("metric", "dynamo_component_requests_total") in {(one.kind, one.name) for one in rows}


def test_variables_are_found_wherever_the_environment_is_asked() -> None:
    source = """
import os
from elsewhere import envs, env_bool, ELSEWHERE
HERE = "HERE_IS_ONE"
os.environ.get(HERE), os.environ[ELSEWHERE], os.getenv("PLAIN")
os.environ["SET_BY_US"] = "1"
"ASKED_FOR" in os.environ
env_bool("BY_HELPER"), envs.SGLANG_ATTRIBUTE.get()
add_argument(env_var="DYN_OF_A_FLAG")
print("NOT_ONE")
"""
    module = Module("here", ast.parse(source), False, {"HERE": "HERE_IS_ONE"})
    assert set(variables(module, {"ELSEWHERE": "FROM_ELSEWHERE"})) == {
        *("HERE_IS_ONE", "FROM_ELSEWHERE", "PLAIN", "SET_BY_US", "ASKED_FOR"),
        *("BY_HELPER", "SGLANG_ATTRIBUTE", "DYN_OF_A_FLAG"),
    }
