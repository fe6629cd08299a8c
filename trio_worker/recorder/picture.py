# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A written trace as a picture: one row a request, its states as bars, the rest as marks; pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trio_worker.recorder import events as at
from trio_worker.recorder import trace as states
from trio_worker.recorder.trace import Trace

WIDTH: Final = 960.0
LEFT: Final = 290.0
"""Where time begins; names stand left of it."""
RIGHT: Final = 130.0
"""Room for how a request ended."""
ROW: Final = 18.0
BAR: Final = 11.0

INK: Final = "#1f2328"
MUTED: Final = "#6e7781"
GRID: Final = "#d0d7de"
BAD: Final = "#cf222e"

COLOURS: Final = {
    states.PLANNING: "#d0d7de",
    states.SUBMITTED: "#ffe2a8",
    states.WAITING: "#f5c26b",
    states.STREAMING: "#7fc79a",
    states.DRAINING: "#c3a6e8",
    states.MIGRATING: "#7fb2ef",
}
ENDS: Final = {
    "complete": MUTED,
    "client left": MUTED,
    states.OPEN: MUTED,
    "migrated": "#0969da",
}
"""How a request may end without being a failure."""
MARKS: Final = {
    at.ABORT_ORDERED: ("abort ordered", "#9a6700"),
    at.ABORT_SENT: ("abort sent", "#cf222e"),
    at.ABORT_CONFIRMED: ("abort confirmed", "#1a7f37"),
    at.ABORT_NEEDLESS: ("abort needless", "#6e7781"),
    at.ABORT_FAILED: ("abort failed", "#82071e"),
    at.DETACHED: ("detached", "#8250df"),
}
"""Instants that are drawn; the others have no place of their own in a picture."""


@dataclass
class _Row:
    name: str
    ended: str = ""
    begin: float = 0.0
    bars: list[tuple[str, float, float]] = field(default_factory=list)
    marks: list[tuple[str, float]] = field(default_factory=list)

    @property
    def times(self) -> Iterable[float]:
        for _, begin, end in self.bars:
            yield from (begin, end)
        for _, moment in self.marks:
            yield moment


def draw(trace: Trace, *, requests: int = 60) -> str:
    """An SVG of the worker's own row and of the `requests` that came last."""
    rows = _rows(trace)
    worker = rows.pop(at.WORKER, _Row("worker"))
    last = sorted(rows.values(), key=lambda row: row.begin)[-requests:] if requests else []
    drawn = [row for row in (worker, *last) if row.bars or row.marks]
    since = min((moment for row in last for moment in row.times), default=None)
    if since is None:
        since = min((moment for row in drawn for moment in row.times), default=0.0)
    until = max((moment for row in drawn for moment in row.times), default=since + 1.0)
    scale = (WIDTH - LEFT - RIGHT) / max(until - since, 1e-6)

    def x(moment: float) -> float:
        return round(LEFT + max(0.0, moment - since) * scale, 2)

    parts: list[str] = []
    left_out = len(rows) - len(last)
    about = trace["otherData"]
    title = f"{_process(trace)}, flight recorder: {about['reason']}"
    parts.append(_text(12, 20, title, INK, size=13))
    _legend(parts, 38)
    top = 66.0
    y = top
    for row in drawn:
        y += ROW
        parts.append(_text(LEFT - 8, y, row.name, INK, anchor="end"))
        for name, begin, end in row.bars:
            if end >= since:
                parts.append(_bar(name, x(begin), x(end), y, worker=row is worker))
        parts += (_mark(name, x(moment), y) for name, moment in row.marks if moment >= since)
        if row.ended:
            end = max(row.times, default=since)
            colour = ENDS.get(row.ended, BAD)
            parts.append(_text(x(end) + 6, y, row.ended, colour))
    bottom = y + 8
    parts[2:2] = _axis(until - since, scale, top, bottom)
    if left_out:
        bottom += 16
        parts.append(_text(LEFT, bottom, f"{left_out} earlier requests are not drawn", MUTED))
    height = bottom + 24
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}"'
        f' width="{WIDTH:g}" height="{height:g}" role="img" font-family="system-ui, sans-serif"'
        f' font-size="11">\n<title>{html.escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _rows(trace: Trace) -> dict[int, _Row]:
    rows: dict[int, _Row] = {}
    for entry in trace["traceEvents"]:
        lane: int = entry["tid"]
        if entry["ph"] == "M":
            if entry["name"] == "thread_name":
                rows.setdefault(lane, _Row("")).name = _shortened(entry["args"]["name"])
            continue
        row = rows.setdefault(lane, _Row(str(lane)))
        moment = entry["ts"] / 1e6
        if entry["ph"] == "i":
            if entry["name"] in MARKS:
                row.marks.append((entry["name"], moment))
            elif entry["name"] == at.REFUSED:
                row.ended, row.begin = at.REFUSED, moment
                row.marks.append((at.REFUSED, moment))
        elif entry["name"] == "request":
            row.ended, row.begin = entry["args"]["ended"], moment
        else:
            row.bars.append((entry["name"], moment, moment + entry["dur"] / 1e6))
    return rows


def _process(trace: Trace) -> str:
    names: Sequence[dict[str, Any]] = trace["traceEvents"]
    return next((one["args"]["name"] for one in names if one["name"] == "process_name"), "")


def _legend(parts: list[str], y: float) -> None:
    x = 12.0
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{x:g}" y="{y - 9:g}" width="12" height="{BAR:g}" fill="{colour}"/>')
        parts.append(_text(x + 16, y, name, MUTED))
        x += 30 + 5.8 * len(name)
    x, y = 12.0, y + 16
    for name, (label, _) in MARKS.items():
        parts.append(_mark(name, x + 6, y))
        parts.append(_text(x + 16, y, label, MUTED))
        x += 30 + 5.8 * len(label)


def _axis(seconds: float, scale: float, top: float, bottom: float) -> list[str]:
    step = _step(seconds)
    parts = []
    for number in range(int(seconds / step) + 1):
        x = LEFT + number * step * scale
        parts.append(
            f'<line x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{bottom:g}" stroke="{GRID}"/>'
        )
        parts.append(_text(x, bottom + 12, f"{number * step:g} s", MUTED, anchor="middle"))
    return parts


def _step(seconds: float) -> float:
    """A round number of seconds, so that there are a handful of them."""
    round_numbers = (figure * 10.0**power for power in range(-5, 8) for figure in (1, 2, 5))
    return next(step for step in round_numbers if seconds / step <= 8)


def _bar(name: str, begin: float, end: float, y: float, *, worker: bool) -> str:
    colour = COLOURS.get(name, GRID)
    width = max(end - begin, 0.5)
    # Phases follow each other at once; a request's states differ in colour.
    edge = ' stroke="#ffffff"' if worker else ""
    bar = (
        f'<rect x="{begin:g}" y="{y - 9:g}" width="{width:.2f}" height="{BAR:g}" fill="{colour}"'
        f"{edge}>"
        f"<title>{html.escape(name)}</title></rect>"
    )
    text = name.removeprefix("phase: ").removeprefix("starting: ")
    if worker and width > 6 * len(text):
        bar += _text(begin + 3, y, text, INK)
    return bar


def _mark(name: str, x: float, y: float) -> str:
    _, colour = MARKS.get(name, ("", BAD))
    return (
        f'<path d="M{x:g} {y - 10:g} l4 6 l-4 6 l-4 -6 z" fill="{colour}" stroke="#ffffff">'
        f"<title>{html.escape(name)}</title></path>"
    )


def _text(
    x: float, y: float, text: str, colour: str, *, anchor: str = "start", size: int = 0
) -> str:
    bigger = f' font-size="{size}" font-weight="600"' if size else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{bigger}>'
        f"{html.escape(text)}</text>"
    )


def _shortened(name: str) -> str:
    return name if len(name) < 28 else f"{name[:20]}…{name[-6:]}"
