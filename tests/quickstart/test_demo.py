# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The demo's scene and screens; the demo itself is run by tests/trials/test_demo.py."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from trio_worker.quickstart.demo.scene import (
    Phase,
    Proof,
    Scene,
    Seen,
    has_migrated,
    phase_of,
    plan_lines,
)
from trio_worker.quickstart.demo.screens import PLAIN_WIDTH, LiveScreen, Screen, draw, write_picture
from trio_worker.quickstart.recitation import PASSAGE

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "demo.svg"
HEAD = "\x1b[2m2026-11-30T19:29:43.880756Z\x1b[0m \x1b[32m INFO\x1b[0m plan._record\x1b[2m:\x1b[0m "
LOG = [
    f"{HEAD}Received signal 15, starting graceful shutdown",
    f"{HEAD}Shutdown: asked to stop; 30.0 s in all",
    f"{HEAD}draining: 1 requests, 1 s left",
    f"{HEAD}Shutdown phase 2 (drain) took 1.00 s: grace over",
    f"{HEAD}Shutdown: Engine was shut down during token generation",
    f"{HEAD}Aborted Request ID: 1",
]
MIGRATED = f"{HEAD}Shutdown phase 3 (migrate) took 0.01 s: done"


def scene() -> Scene:
    return Scene(workers=[Seen("worker-0", 11), Seen("worker-1", 12)])


def shown(scene: Scene, height: int | None = None) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(draw(scene, height))
    return console.export_text()


def test_what_a_log_tells_of_a_stop() -> None:
    assert plan_lines("\n".join(["importing", *LOG])) == [
        "Received signal 15, starting graceful shutdown",
        "Shutdown: asked to stop; 30.0 s in all",
        "draining: 1 requests, 1 s left",
        "Shutdown phase 2 (drain) took 1.00 s: grace over",
    ]


def test_a_phase_is_taken_apart() -> None:
    assert phase_of(plan_lines(LOG[3])[0]) == Phase(2, "drain", 1.0, "grace over")
    assert phase_of("Shutdown took 3 s") is None


def test_who_has_migrated() -> None:
    assert not has_migrated("\n".join(LOG))
    assert has_migrated("\n".join([*LOG, MIGRATED]))


def test_text_is_kept_by_worker() -> None:
    seen = scene()
    for worker, piece in ((1, "a"), (1, "b"), (0, "c"), (0, "d")):
        seen.add_text(worker, piece)
    assert seen.parts == [(1, "ab"), (0, "cd")]
    assert seen.text == "abcd"


def test_nothing_is_proven_without_proofs() -> None:
    seen = scene()
    assert not seen.proven
    seen.proofs = [Proof("a", True), Proof("b", False)]
    assert not seen.proven
    seen.proofs = [Proof("a", True)]
    assert seen.proven


def test_plain_lines_hold_the_whole_text_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    screen = Screen(scene(), said.append)
    for place in range(0, len(PASSAGE), 3):
        screen.add_text(1 if place < 600 else 0, PASSAGE[place : place + 3])
    screen.scene.proofs = [Proof("it holds", True), Proof("it does not", False)]
    screen.conclude()
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= len("    worker-0 | ") + PLAIN_WIDTH
    # A line that is cut ends at a space, or at the word in which the other worker took over.
    text = "".join(line.partition(" | ")[2] for line in lines)
    assert text == re.sub(r"\s", "", PASSAGE) or re.sub(r"\s", "", text) == re.sub(
        r"\s", "", PASSAGE
    )
    servers = [line.split()[0] for line in lines]
    assert servers == sorted(servers, reverse=True)
    assert set(servers) == {"worker-0", "worker-1"}
    assert said == ["yes  it holds", "NO   it does not"]


def test_the_screen_shows_who_serves_and_how_the_stop_goes() -> None:
    seen = scene()
    screen = LiveScreen(seen, print)
    seen.workers[1].requests = 1
    screen.worker_does(1, "serves the request")
    screen.add_text(1, "The Keeper")
    assert "no stop yet" in shown(seen)
    seen.stopped, seen.stopped_at = 1, 10
    for line in plan_lines("\n".join(LOG[:3])):
        screen.add_plan(line)
    picture = shown(seen)
    assert re.search(r"worker-1\s+12\s+serves\s+serves the request", picture)
    assert "the stop of worker-1" in picture
    assert "draining: 1 requests, 1 s left" in picture
    screen.add_plan(plan_lines(LOG[3])[0])
    picture = shown(seen)
    assert re.search(r"2 drain\s+1\.00 s\s+grace over", picture)
    assert "draining" not in picture


def test_a_low_terminal_shows_the_end_of_the_text() -> None:
    seen = scene()
    seen.add_text(0, PASSAGE)
    low, whole = shown(seen, 24), shown(seen)
    assert "The Keeper of the Weir" in whole
    assert "The Keeper of the Weir" not in low
    assert "which was never hers" in low
    assert len(low.splitlines()) <= 24


def test_a_picture_fetches_nothing(tmp_path: Path) -> None:
    seen = scene()
    seen.add_text(0, "The Keeper")
    write_picture(seen, tmp_path / "new" / "demo.svg")
    svg = (tmp_path / "new" / "demo.svg").read_text()
    assert "Keeper" in svg
    assert re.findall(r"https?://(?!www\.w3\.org/)\S+", svg) == []


def test_the_picture_in_the_docs_is_of_a_run_that_proved_it() -> None:
    svg = PICTURE.read_text()
    lines: dict[float, str] = {}
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        del x
        lines[float(y)] = lines.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    picture = "\n".join(lines.values())
    assert picture.count("yes  ") == 4
    assert "NO " not in picture
    assert f"{len(PASSAGE):,} of {len(PASSAGE):,} characters" in picture
    assert re.search(r"3 migrate\s+[\d.]+ s\s+done", picture)
