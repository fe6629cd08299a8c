# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.top: what is on the screen, and the command line."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import Any, cast

import httpx
import pytest
from rich.console import Console

from trio_worker.top.__main__ import main
from trio_worker.top.render import screen, seconds
from trio_worker.top.watch import Watched

from .views import request, view


def watched(seen: dict[str, Any] | None, **state: Any) -> Watched:
    one = Watched.__new__(Watched)
    one.__dict__ |= {
        "url": "http://a:1",
        "view": seen,
        "trouble": "",
        "silent_since": None,
        "restarts": 0,
        "tokens_per_s": None,
        "said": "",
        **state,
    }
    return one


def shown(*those: Watched, height: int = 50) -> str:
    console = Console(file=io.StringIO(), width=140, height=height)
    console.print(screen(those, 100.0, height))
    return cast(io.StringIO, console.file).getvalue()


def test_a_worker_and_its_requests() -> None:
    text = shown(
        watched(view(request(1), request(2, phase="draining", deadline_in_s=0.4, stuck_s=3.0)))
    )
    for part in ("http://a:1", "model", "decode", "pid 7", "up 1 h 01 min", "2 requests", "rid-1"):
        assert part in text
    (line,) = [line for line in text.splitlines() if "rid-2" in line]
    assert "draining" in line
    assert "0.4 s" in line
    assert "3.0 s" in line


def test_a_stop_with_the_time_that_is_left() -> None:
    stop = {"reason": "asked to stop", "active": {"drain": 2.5}, "seconds_left": 27.5, "phases": []}
    assert "stopping (asked to stop): drain 2.5 s, 27.5 s left" in shown(
        watched(view(shutdown=stop))
    )


def test_a_worker_that_is_gone_keeps_its_last_figures() -> None:
    text = shown(watched(view(request(1)), trouble="refused", silent_since=90.0))
    assert "gone: refused; last heard 10.0 s ago, asking on" in text
    assert "rid-1" in text


def test_a_worker_that_never_answered() -> None:
    assert "refused" in shown(watched(None, trouble="refused"))
    assert "asking" in shown(watched(None))


def test_pending_aborts_and_answers() -> None:
    pending = [{"rid": "rid-9", "context": "c", "waits_for": "dispatch", "age_s": 4.0}]
    text = shown(
        watched(
            view(aborts={"sent": 0, "confirmed": 0, "pending": pending}),
            said="flight recorder: file",
            restarts=2,
        )
    )
    assert "abort of rid-9 waits for dispatch, 4.0 s" in text
    assert "flight recorder: file" in text
    assert "restarted 2 times" in text


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_it_fits_the_screen(workers: int) -> None:
    many = view(*(request(number) for number in range(400)))
    text = shown(*(watched(many) for _ in range(workers)), height=48)
    assert len(text.splitlines()) <= 48 + 2 * workers
    assert text.count("… and") == workers


def test_names_of_others_are_no_markup() -> None:
    assert "[red]x[/]" in shown(watched(view(request(1, context="[red]x[/]"))))


def test_durations() -> None:
    assert [seconds(value) for value in (0.04, 59.9, 60, 3600, 90061)] == [
        "0.0 s",
        "59.9 s",
        "1 min 00 s",
        "1 h 00 min",
        "25 h 01 min",
    ]


@pytest.mark.parametrize("argv", [[], ["a"], ["--every", "0", "1234"], ["--every", "inf", "1"]])
def test_bad_arguments(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(argv)
    assert leaving.value.code == 2
    capsys.readouterr()


def test_once_says_that_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", "1"]) == 1  # a port that nobody serves
    assert "ConnectError" in capsys.readouterr().out


def test_q_leaves_and_the_terminal_is_as_it_was() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "trio_worker", "top", "--every", "0.05", "1"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    ) as process:
        os.close(theirs)
        heard = b""
        while b"ConnectError" not in heard:
            heard += os.read(ours, 4096)
        os.write(ours, b"q")
        while b"\x1b[?1049l" not in heard:  # the screen from before is back
            heard += os.read(ours, 4096)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    os.close(ours)


def test_the_worker_does_not_import_it() -> None:
    code = (
        "import sys, trio_worker, trio_worker.__main__, trio_worker.startup\n"
        "print(sorted({'rich', 'httpx', 'sglang'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_httpx_is_what_watch_thinks_it_is() -> None:
    """An error of the network is an HTTPError, not an OSError."""
    assert issubclass(httpx.ConnectError, httpx.HTTPError)
