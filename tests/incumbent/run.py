# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m tests.incumbent.run [incumbent|ours]``: the incumbent's own tests, and a count.

Exit status 0: all that apply passed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.incumbent.not_applicable import NOT_APPLICABLE

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


def installed_tests() -> list[Path]:
    """The test files that came with ``ai-dynamo``."""
    spec = importlib.util.find_spec("dynamo.sglang")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "tests"
    return [folder / name for name in NOT_APPLICABLE]


def run(against: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Run them in a process of their own. Returns pytest's exit status and the plugin's report."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            str(HERE / "pytest.ini"),
            "--rootdir",
            str(HERE),
            "-p",
            "tests.incumbent.plugin",
            # pytest-asyncio drives the tests only when they are run against the incumbent.
            *(["-p", "no:asyncio"] if against == "ours" else ["--asyncio-mode", "strict"]),
            *options,
            *map(str, installed_tests()),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "TRIO_WORKER_TESTS_AGAINST": against,
            "TRIO_WORKER_TESTS_REPORT": str(report),
        }
        status = subprocess.run(command, env=environment, cwd=scratch, check=False).returncode
        return status, json.loads(report.read_text())


def main() -> int:
    """Run and print the count as the last line."""
    against = sys.argv[1] if len(sys.argv) > 1 else "ours"
    status, report = run(against, "-q", "-W", "ignore", *sys.argv[2:])
    for test, reason in report["left_out"].items():
        print(f"left out: {test}: {reason}")
    outcomes = report["outcomes"]
    print(
        f"against {against}: {outcomes.get('passed', 0)} passed, "
        f"{outcomes.get('failed', 0)} failed, {len(report['left_out'])} left out"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
