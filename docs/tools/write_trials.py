# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Writes what runs of ``make trials`` saw into `docs/shutdown.md`, and draws its rolling restart.

    python -m tests.trials --logs build/trials/logs
    python docs/tools/write_trials.py --take build/trials/results.json --logs build/trials/logs

``--take`` (once for each run) keeps the runs' sums in ``docs/trials/results.json``; ``--logs``
keeps when each worker of the first run's rolling restart served and stopped, as its log tells.
Without options the page and the picture are written from what is kept; ``--check`` writes nothing
and fails where they differ. Imports nothing of the project.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "shutdown.md"
KEPT = ROOT / "docs" / "trials"
RESULTS, ROLLING, PICTURE = (
    KEPT / name for name in ("results.json", "rolling.json", "rolling.svg")
)
BEGIN, END = "<!-- trials: begin -->\n", "<!-- trials: end -->\n"

Stop = dict[str, Any]


# ---- the page ----


def render(runs: Sequence[dict[str, Any]]) -> str:
    """The page's tables; pure."""
    return "\n".join(f"{_run(run)}\n" for run in runs)


def _run(run: dict[str, Any]) -> str:
    settings = run["settings"]
    sums = "; ".join(
        f"{name}: {run[name]['trials']} trials, {run[name]['exact']} exact,"
        f" {run[name]['failed_requests']} failed requests,"
        f" {run[name]['wrong_exit_status']} wrong exit statuses, {run[name]['orphans']} orphans,"
        f" {run[name]['left_in_discovery']} entries left in discovery"
        for name in ("ours", "incumbent")
        if name in run
    )
    load = f"{settings['streams']} streams of {settings['tokens']} tokens a trial"
    table = "\n".join(run["table"])
    return (
        f"Engine: {settings['engine']}; {load}, two workers, {settings['processors']} processors."
        f" In sum, {sums}.\n\n{table}"
    )


def with_tables(page: str, tables: str) -> str:
    """The page with its tables replaced; pure."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


# ---- the rolling restart ----

_LINE = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z) +[A-Z]+ (.*)")
_PHASE = re.compile(r"Shutdown phase \d \((\w+)\) took ([\d.]+) s")


def stop_of(log: str) -> Stop | None:
    """When one worker served, was asked to stop, and its phases; None if it was not. Seconds."""
    stop: Stop = {"phases": []}
    for match in _LINE.finditer(re.sub(r"\x1b\[[\d;]*m", "", log)):
        at = datetime.fromisoformat(match[1]).timestamp()
        if "Model registration succeeded" in match[2]:
            stop["ready"] = at
        elif "starting graceful shutdown" in match[2]:
            stop.setdefault("asked", at)
        elif phase := _PHASE.search(match[2]):
            stop["phases"].append({"name": phase[1], "from": at - float(phase[2]), "to": at})
    return stop if "ready" in stop and "asked" in stop and stop["phases"] else None


LEFT_OVER = 2
"""Workers that a rolling restart leaves behind; the end of their cluster stops them."""


def take_rolling(logs: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The rolling restart's stops are the last ones of the run, but for what it leaves."""
    rolling = run["ours"]["rolling"]
    files = sorted((logs / "ours").glob("ours-*.log"), key=lambda file: int(file.stem[5:]))
    stops = [stop for file in files if (stop := stop_of(file.read_text(errors="replace")))]
    stops = stops[-LEFT_OVER - len(rolling["stops"]) : -LEFT_OVER]
    zero = stops[0]["asked"] - 5.0
    for stop, seen in zip(stops, rolling["stops"], strict=True):
        stop["streams"] = seen["on_victim"]
        stop["ready"] = round(stop["ready"] - zero, 3)
        stop["asked"] = round(stop["asked"] - zero, 3)
        for phase in stop["phases"]:
            phase["from"] = round(phase["from"] - zero, 3)
            phase["to"] = round(phase["to"] - zero, 3)
    return {name: rolling[name] for name in ("requests", "exact", "migrations")} | {"stops": stops}


COLOURS = {
    "serving": "#8fc7a1",
    "withdraw": "#d4a72c",
    "drain": "#f2cc60",
    "migrate": "#cf222e",
    "leaving": "#6e7781",
}
LEAVING = ("stop", "engine", "deferred", "exit")
LEFT, WIDTH, ROW = 190.0, 780.0, 24.0
ZOOM_PHASES = 16.0
"""Height of one phase's row in the closer look, pixels."""


def draw(rolling: dict[str, Any]) -> str:
    """Every worker's life in a row, then the first stop's phases from close by; pure."""
    stops = rolling["stops"]
    first = stops[0]
    until = max(stop["phases"][-1]["to"] for stop in stops) + 2.0
    parts = [
        _text(
            12,
            20,
            f"Rolling restart: {rolling['exact']} of {rolling['requests']} answers exact,"
            f" {rolling['migrations']} migrations",
            weight=600,
        )
    ]
    y = 40.0
    scale = (WIDTH - LEFT - 20) / until
    for number, stop in enumerate(stops, 1):
        parts.append(_text(12, y + 12, f"worker {number}, {stop['streams']} streams at its stop"))
        for colour, start, end in _spans(stop):
            start = max(start, 0.0)
            x, width = LEFT + start * scale, max((end - start) * scale, 0.8)
            parts.append(_bar(x, y, width, ROW - 8, COLOURS[colour]))
        y += ROW
    parts += _axis(y, until, scale)
    y += 44
    begin, end = first["asked"], first["phases"][-1]["to"]
    close = (WIDTH - LEFT - 80) / max(end - begin, 0.1)
    parts.append(_text(12, y, "The first stop, phase by phase", weight=600))
    y += 10
    for phase in first["phases"]:
        x, width = LEFT + (phase["from"] - begin) * close, (phase["to"] - phase["from"]) * close
        parts.append(_text(12, y + 12, phase["name"]))
        parts.append(_bar(x, y + 2, max(width, 1.0), ZOOM_PHASES - 4, COLOURS[_colour(phase)]))
        took = f"{phase['to'] - phase['from']:.2f} s"
        parts.append(_text(x + max(width, 1.0) + 4, y + 12, took))
        y += ZOOM_PHASES
    parts += _axis(y, end - begin, close)
    y += 30
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = 12 + 110.0 * place
        parts += [_bar(x, y, 12, 12, colour), _text(x + 18, y + 10, name)]
    height = y + 24
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}"'
        f' width="{WIDTH:g}" height="{height:g}" role="img" font-family="system-ui, sans-serif"'
        f' font-size="11">\n<title>Rolling restart</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _spans(stop: Stop) -> Iterator[tuple[str, float, float]]:
    yield "serving", stop["ready"], stop["asked"]
    for phase in stop["phases"]:
        yield _colour(phase), phase["from"], phase["to"]


def _colour(phase: dict[str, Any]) -> str:
    return "leaving" if phase["name"] in LEAVING else str(phase["name"])


def _axis(y: float, until: float, scale: float) -> list[str]:
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if until / step <= 10)
    marks = [
        f'<line x1="{LEFT + at * step * scale:.1f}" y1="{y:g}"'
        f' x2="{LEFT + at * step * scale:.1f}" y2="{y + 4:g}" stroke="#6e7781"/>'
        + _text(LEFT + at * step * scale, y + 16, f"{at * step:g} s", anchor="middle")
        for at in range(int(until / step) + 1)
    ]
    return [
        f'<line x1="{LEFT:g}" y1="{y:g}" x2="{LEFT + until * scale:.1f}" y2="{y:g}"'
        f' stroke="#6e7781"/>',
        *marks,
    ]


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: int = 400) -> str:
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return (
        f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}" fill="#1f2328"{bold}>'
        f"{html.escape(text)}</text>"
    )


def main(arguments: Sequence[str]) -> int:
    """0: page, picture and what is kept agree."""
    parser = argparse.ArgumentParser(description="Write what trials saw into the docs.")
    parser.add_argument("--take", type=Path, action="append", default=[], metavar="RESULTS")
    parser.add_argument("--logs", type=Path, metavar="FOLDER")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if options.take:
        runs = [json.loads(file.read_text()) for file in options.take]
        if options.logs:
            rolling = take_rolling(options.logs, runs[0])
            ROLLING.write_text(json.dumps(rolling, indent=1) + "\n")
        for run in runs:
            for name in ("ours", "incumbent"):
                run.get(name, {}).pop("each", None)
        RESULTS.write_text(json.dumps(runs, indent=1) + "\n")
    page = PAGE.read_text()
    tables = with_tables(page, render(json.loads(RESULTS.read_text())))
    picture = draw(json.loads(ROLLING.read_text()))
    if options.check:
        return int(page != tables or PICTURE.read_text() != picture)
    PAGE.write_text(tables)
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
