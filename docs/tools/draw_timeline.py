# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Draws the docs' timelines from recorded runs of the tests in `tests/semantics`.

    TRIO_WORKER_TIMELINES=1 python -m tests tests/semantics -k ...   # records to build/timelines
    python docs/tools/draw_timeline.py --record build/timelines       # keeps what is drawn here
    python docs/tools/draw_timeline.py                                # draws docs/timelines/*.svg

What is drawn is listed in `docs/timelines/index.json`: for each picture its rule and its runs,
named by the recording's file. What happens in one instant may come in another order next time.
``--check`` draws nothing and fails where a picture is not what its recording gives.
Imports nothing of the project.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "timelines"
INDEX = FOLDER / "index.json"

LANES = ("client", "worker", "SGLang", "scheduler")
LANE_X = {"client": 110.0, "worker": 290.0, "SGLang": 480.0, "scheduler": 670.0}
WIDTH = 790.0
ROW = 22.0
SHORTEST_RUN = 5
"""So many instants alike, or arrows alike in one instant, are drawn as first, count and last."""

INK, MUTED, GRID = "#1f2328", "#6e7781", "#d0d7de"
GOOD, BAD, ASKED = "#1a7f37", "#cf222e", "#9a6700"

FLIGHT_COLOUR = "#8250df"
FLIGHT = {
    "noted stop seen": "stop seen",
    "noted abort ordered": "abort ordered",
    "noted abort needless": "abort needless",
    "noted abort failed": "abort failed",
    "noted abort confirmed": "abort confirmed",
    "noted drain ended": "drain ended",
    "noted detached": "detached",
    "noted refused": "refused",
}
"""What the flight recorder alone knows; the rest of its events are arrows between two lanes."""

Event = dict[str, Any]


# ---- recordings ----


def record(source: Path) -> None:
    """Copy what the index asks for out of a folder of recordings, without what is not drawn."""
    for name, picture in index().items():
        runs = []
        for file in picture["runs"]:
            run = json.loads((source / f"{file}.json").read_text())
            drawn = [event for event in run["events"] if arrow_of(event) is not None]
            until = picture.get("until", drawn[-1]["time"])
            run["events"] = [event for event in drawn if event["time"] <= until]
            run["goes_on"] = drawn[-1]["time"] if drawn[-1]["time"] > until else None
            runs.append(run)
        lines = ",\n".join(_run_lines(run) for run in runs)
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


def _run_lines(run: dict[str, Any]) -> str:
    """One event a line: small, and a difference can be read."""
    events = ",\n  ".join(json.dumps(event) for event in run["events"])
    rest = {key: value for key, value in run.items() if key != "events"}
    return f' {{"run": {json.dumps(rest)},\n "events": [\n  {events}]}}'


def index() -> dict[str, dict[str, Any]]:
    """Name of the picture -> rule, title, runs, and where it stops short: "until", in seconds."""
    pictures: dict[str, dict[str, Any]] = json.loads(INDEX.read_text())
    return pictures


# ---- events ----


@dataclass(frozen=True)
class Arrow:
    """One row: words, from one lane to another or beside one."""

    start: str
    end: str
    text: str
    colour: str = INK


def arrow_of(event: Event) -> Arrow | None:
    """How an event of the journal is drawn; None: not at all."""
    detail, rid = event["detail"], event["rid"] or ""
    match event["actor"], event["event"]:
        case "runtime", "request":
            return Arrow("client", "worker", "request" + _number(detail))
        case "client", "stop":
            return Arrow("client", "worker", "stop", ASKED)
        case "client", "kill":
            return Arrow("client", "worker", "kill", ASKED)
        case "client", "consumer lost":
            return Arrow("client", "client", "lost, without a word", ASKED)
        case "client", "leaves":
            return Arrow("client", "client", "leaves", ASKED)
        case "client", "chunk":
            which = f"{detail['request'] + 1}: " if detail["request"] else ""
            return Arrow("worker", "client", which + _tokens(detail), GOOD)
        case "runtime", "owner cancelled":
            return Arrow("client", "worker", "caller cancelled", ASKED)
        case "runtime", "ended":
            error = detail not in ("normally", "owner cancelled")
            return Arrow("worker", "client", f"ends: {detail}", BAD if error else INK)
        case "worker", "shutdown":
            return Arrow("worker", "worker", "worker shuts down", ASKED)
        case "worker", ("pause requested" | "pause answered" as what):
            return Arrow("worker", "worker", what, ASKED)
        case "sglang", "registered":
            return Arrow("SGLang", "SGLang", f"{rid} registered")
        case "sglang", "abort called":
            return Arrow("worker", "SGLang", f"abort {rid}", ASKED)
        case "sglang", (
            "stream cancelled" | "stream gave in" | "abort refused by the socket" as what
        ):
            return Arrow("SGLang", "SGLang", what, ASKED)
        case "scheduler", "dispatched":
            return Arrow("SGLang", "scheduler", f"{rid} dispatched")
        case "scheduler", "abort matched":
            return Arrow("SGLang", "scheduler", f"abort hits {rid}", GOOD)
        case "scheduler", "abort matches nothing":
            return Arrow("SGLang", "scheduler", "abort matches nothing", BAD)
        case "scheduler", "abort ignored":
            return Arrow("scheduler", "scheduler", "ignored", BAD)
        case "scheduler", "abort echoed":
            return Arrow("scheduler", "SGLang", "abort echoed")
        case "scheduler", "output":
            return Arrow("scheduler", "SGLang", _tokens(detail))
        case "recorder", noted if noted in FLIGHT:
            which = f"{detail['request'] + 1}: " if detail["request"] else ""
            how = f": {detail['detail']}" if detail["detail"] else ""
            return Arrow("worker", "worker", which + FLIGHT[noted] + how, FLIGHT_COLOUR)
        case "log", ("WARNING" | "ERROR"):
            return Arrow("worker", "worker", f"“{_shortened(detail)}”", MUTED)
    return None


def _number(context_id: str) -> str:
    _, _, number = context_id.partition("dynamo-request-")
    return f" {number}" if number else ""


def _tokens(detail: dict[str, Any]) -> str:
    ids = detail["ids"]
    shown = " ".join(map(str, ids)) if len(ids) < 4 else f"{ids[0]} … {ids[-1]}"
    finish = f"finish: {detail['finish']}" if detail["finish"] else ""
    return ", ".join(filter(None, (shown or ("empty" if not finish else ""), finish)))


def _shortened(line: str) -> str:
    return line if len(line) < 66 else line[:64] + "…"


# ---- rows ----


@dataclass(frozen=True)
class Row:
    """One line of the picture; `time` only where it begins an instant.

    A note stands in place of its arrow, between the same lanes.
    """

    time: float | None
    arrow: Arrow | None
    gap: float = 0.0
    note: str = ""


def rows_of(events: Sequence[Event]) -> Iterator[Row]:
    """Instants in order; a stretch of instants alike is shortened."""
    instants = _instants(events)
    last: float | None = None
    place = 0
    while place < len(instants):
        time, arrows = instants[place]
        alike = _alike_from(instants, place)
        gap = 0.0 if last is None else min(26.0, 4 + 40 * (time - last))
        yield Row(time, arrows[0], gap)
        yield from _shortened_rows(arrows)
        last = time
        if alike >= SHORTEST_RUN:
            yield Row(None, None, 0.0, f"{alike - 2} more like this")
            place += alike - 1
        else:
            place += 1


def _shortened_rows(arrows: Sequence[Arrow]) -> Iterator[Row]:
    """All but the first row of an instant; a burst is shortened."""
    ways = [(arrow.start, arrow.end, arrow.colour) for arrow in arrows]
    burst = next((place for place, way in enumerate(ways) if way != ways[0]), len(ways))
    if burst < SHORTEST_RUN:
        burst = 0
    else:
        yield Row(None, arrows[0], 0.0, f"{burst - 2} more like this")
    for arrow in arrows[max(1, burst - 1) :]:
        yield Row(None, arrow)


def _instants(events: Sequence[Event]) -> list[tuple[float, list[Arrow]]]:
    instants: list[tuple[float, list[Arrow]]] = []
    for event in events:
        arrow = arrow_of(event)
        if arrow is None:
            continue
        if not instants or instants[-1][0] != event["time"]:
            instants.append((event["time"], []))
        instants[-1][1].append(arrow)
    return instants


def _alike_from(instants: Sequence[tuple[float, list[Arrow]]], place: int) -> int:
    """How many instants from `place` on are plain outputs that take the same way."""

    def shape(arrows: Sequence[Arrow]) -> list[tuple[str, str, str]] | None:
        ways = [(arrow.start, arrow.end, arrow.text[:2]) for arrow in arrows]
        plain = all(
            way[:2] in (("scheduler", "SGLang"), ("worker", "client"))
            and "finish" not in arrow.text
            and not arrow.text.startswith("ends")
            for way, arrow in zip(ways, arrows, strict=True)
        )
        return (
            sorted((start, end, "2" if text == "2:" else "") for start, end, text in ways)
            if (plain)
            else None
        )

    first = shape(instants[place][1])
    if first is None:
        return 1
    count = 1
    while place + count < len(instants) and shape(instants[place + count][1]) == first:
        count += 1
    return count


# ---- SVG ----


def draw(title: str, runs: Sequence[dict[str, Any]]) -> str:
    """The picture: one panel for each run, under each other."""
    parts: list[str] = []
    y = 30.0
    for run in runs:
        caption = {"ours": "trio-worker", "incumbent": "the incumbent (dynamo.sglang 1.6.1)"}
        name = caption[run["run"]["implementation"]] if len(runs) > 1 else ""
        y = _panel(parts, y, name, run["events"], run["run"]["goes_on"])
    height = y + 6
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}"'
        f' width="{WIDTH:g}" height="{height:g}" role="img" font-family="system-ui, sans-serif"'
        f' font-size="11">\n<title>{html.escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="12" y="20" font-size="13" font-weight="600" fill="{INK}">{html.escape(title)}'
        f"</text>\n{body}\n</svg>\n"
    )


def _panel(
    parts: list[str], y: float, name: str, events: Sequence[Event], goes_on: float | None
) -> float:
    if name:
        y += 16
        parts.append(_text(12, y, name, INK, anchor="start", weight=600))
    y += 16
    for lane in LANES:
        parts.append(_text(LANE_X[lane], y, lane, MUTED, weight=600))
    parts.append(_text(56, y, "s", MUTED, anchor="end"))
    top = y + 6
    y += 8
    lines: list[str] = []
    rows = list(rows_of(events))
    if goes_on is not None:
        rows.append(Row(None, None, 0.0, f"and so on, until {goes_on:g} s"))
    for row in rows:
        y += row.gap + ROW
        if row.time is not None:
            lines.append(_text(56, y + 4, f"{row.time:.3f}".rstrip("0").rstrip("."), MUTED, "end"))
        if row.note:
            start, end = (row.arrow.start, row.arrow.end) if row.arrow else ("SGLang", "SGLang")
            middle = (LANE_X[start] + LANE_X[end]) / 2
            lines.append(_text(middle, y, f"⋮ {row.note}", MUTED, halo=True))
        elif row.arrow is not None:
            lines += _arrow(row.arrow, y)
    parts += [
        f'<line x1="{x:g}" y1="{top:g}" x2="{x:g}" y2="{y + 6:g}" stroke="{GRID}"/>'
        for x in LANE_X.values()
    ]
    parts += lines
    return y + 12


def _arrow(arrow: Arrow, y: float) -> list[str]:
    start, end = LANE_X[arrow.start], LANE_X[arrow.end]
    level = y
    if start == end:
        return [
            f'<circle cx="{start:g}" cy="{level:g}" r="3" fill="{arrow.colour}"/>',
            _text(start + 8, y + 4, arrow.text, arrow.colour, anchor="start", halo=True),
        ]
    tip = 6 if end > start else -6
    return [
        f'<line x1="{start:g}" y1="{level:g}" x2="{end - tip:g}" y2="{level:g}"'
        f' stroke="{arrow.colour}"/>',
        f'<path d="M{end:g} {level:g} l{-tip:g} -3 v6 z" fill="{arrow.colour}"/>',
        _text((start + end) / 2, y - 4, arrow.text, arrow.colour, halo=True),
    ]


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    anchor: str = "middle",
    weight: int = 400,
    halo: bool = False,
) -> str:
    around = ' stroke="#ffffff" stroke-width="4" paint-order="stroke"' if halo else ""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{bold}{around}>'
        f"{html.escape(text)}</text>"
    )


def pictures() -> Iterator[tuple[Path, str]]:
    """File and content of every picture."""
    for name, picture in index().items():
        runs = json.loads((FOLDER / f"{name}.json").read_text())
        yield FOLDER / f"{name}.svg", draw(picture["title"], runs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the docs' timelines.")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="take recordings from there")
    parser.add_argument("--check", action="store_true", help="fail if a picture is out of date")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record)
    stale = [file for file, svg in pictures() if not file.exists() or file.read_text() != svg]
    for file, svg in pictures():
        if not arguments.check:
            file.write_text(svg)
    print(*(file.name for file in stale), sep="\n")
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
