# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Runs a program that has an engine, in a process of its own, and reads what it saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_engine_child(module: str, scratch: Path, seconds: float) -> dict[str, Any]:
    """Neither flavour. ``python -m MODULE SCRATCH RESULT`` within `seconds`; RESULT by case."""
    result = scratch / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", module, str(scratch), str(result)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(result.read_text())
    return found
