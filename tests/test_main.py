# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.__main__: its very first lines, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

STOPPED_AT_INSTALL = """
    import signal, sys
    import compat.signals

    def install():
        print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
        raise SystemExit(0)

    compat.signals.install = install
    from trio_worker.__main__ import main
    main()
"""


def run(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", dedent(code), *argv], capture_output=True, text=True
    )


def test_stops_and_questions_are_kept_from_the_first_line() -> None:
    done = run(STOPPED_AT_INSTALL, "--model-path", "x")
    assert done.stdout == "[2, 3, 10, 15]\n"


@pytest.mark.parametrize("argv", [["top"], ["top", "--once"]])
def test_top_is_no_worker(argv: list[str]) -> None:
    done = run(STOPPED_AT_INSTALL, *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: trio-worker top" in done.stderr


@pytest.mark.parametrize("argv", [["--served-model-name", "top"], ["--flag", "top"]])
def test_a_value_that_is_top_starts_a_worker(argv: list[str]) -> None:
    assert run(STOPPED_AT_INSTALL, *argv).stdout == "[2, 3, 10, 15]\n"
