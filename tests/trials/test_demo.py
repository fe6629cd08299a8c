# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make demo`` as a person runs it, on a pipe and on a terminal."""

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


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}


def assert_proven(said: str) -> None:
    assert said.count("yes  ") == 4, said
    assert "NO   " not in said
    assert "the frontend counts 1 migration" in said
    assert "processes left behind: none" in said


def test_demo_in_plain_lines(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    temporary = tmp_path / "t"
    temporary.mkdir()
    ended = subprocess.run(
        [*COMMAND, "--picture", str(picture)],
        capture_output=True,
        text=True,
        env=environment(temporary),
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_proven(ended.stdout)
    assert "worker-0 | " in ended.stdout
    assert "worker-1 | " in ended.stdout
    assert picture.read_text().startswith("<svg")
    assert list(temporary.iterdir()) == []


def test_demo_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment(tmp_path), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"},
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
    assert process.wait(PATIENCE_S) == 0
    text = said.decode(errors="replace")
    assert "the stop of worker-" in text
    # What is drawn in the end stays.
    assert "letter for letter" in text[-6000:]
