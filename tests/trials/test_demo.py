# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make demo`` as a person runs it; what it says elsewhere: `tests/quickstart/test_demo.py`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "trio_worker.quickstart", "--demo"]
PATIENCE_S = 900

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_S)]


def test_demo_on_a_terminal(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    temporary = tmp_path / "t"
    temporary.mkdir()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "--picture", str(picture)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "COLUMNS": "120",
            "LINES": "50",
        },
        cwd=ROOT,
    )
    os.close(theirs)
    said = b""
    with open(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                data = terminal.read(65536)
            except OSError:  # the other side has gone
                break
            if not data:
                break
            said += data
    text = said.decode(errors="replace")
    assert process.wait(PATIENCE_S) == 0, text
    assert "the stop of worker-" in text
    # What is drawn in the end stays.
    for proof in ("letter for letter", "the frontend counts 1 migration", "none is left"):
        assert proof in text[-6000:]
    assert "processes left behind: none" in text
    assert picture.read_text().startswith("<svg")
    assert list(temporary.iterdir()) == []
