# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""docs/cli.md: its tables are the parsers', and every variable that the code reads is on it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from . import pages

PAGE = pages.DOCS / "cli.md"
SCRIPT = pages.DOCS / "tools" / "write_cli.py"
VARIABLE = re.compile(r"[\"'`]((?:DYN|TRIO_WORKER|SGLANG|ETCD|NATS)_[A-Z_]+)\b")
CALLERS = ("quickstart", "standin/script.py")
"""What sets variables for others."""


def test_the_tables_are_the_parsers() -> None:
    """After a change: ``python docs/tools/write_cli.py``. With nothing in the environment."""
    code = (
        "import runpy, sys; script = runpy.run_path(sys.argv[1]); "
        "sys.stdout.write(script['written'](script['PAGE'].read_text()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT)],
        env={"PATH": "", "PYTHONPATH": str(pages.ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == PAGE.read_text()


def test_a_table_without_a_place_is_refused() -> None:
    writing = pages.tool("write_cli")
    without = PAGE.read_text().replace("<!-- from the parser: sglang -->", "")
    with pytest.raises(ValueError, match="sglang"):
        writing["written"](without)


def test_variables_that_the_code_reads_are_told() -> None:
    files = (
        file
        for package in pages.CODE
        for file in (pages.ROOT / package).rglob("*.py")
        if not any(caller in str(file) for caller in CALLERS)
    )
    read = {name for file in files for name in VARIABLE.findall(file.read_text())}
    assert read
    told = set(re.findall(r"`([A-Z]+_[A-Z_0-9]+)`", PAGE.read_text()))
    assert read - told == set()
