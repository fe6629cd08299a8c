# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The real Dynamo runtime on our loop: server and client, over its TCP request plane."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import trio

ROOT = Path(__file__).resolve().parents[2]


async def test_the_dynamo_runtime_serves_on_the_loop() -> None:
    done = await trio.run_process(
        [sys.executable, "-m", "tests.compat.loop_runtime_child"],
        cwd=ROOT,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = (done.stdout or b"").decode()
    assert done.returncode == 0, output
    seen = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    assert seen == {
        # Calls from Rust come without our context, and find the loop all the same.
        "context is empty": True,
        "running loop": True,
        "pull": [2 * number for number in range(300)],
        "push": list(range(300)),
        "endless": "stopped",
        "served": 3,
        "unhandled": 0,
    }
