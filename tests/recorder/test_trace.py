# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.recorder: from events to a trace, a file, a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from trio_worker.recorder import Event, files
from trio_worker.recorder import events as at
from trio_worker.recorder.__main__ import main
from trio_worker.recorder.picture import draw
from trio_worker.recorder.trace import Source, trace_of

EPOCH = 1_000_000.0
SOURCE = Source(
    name="trio-worker model", pid=7, now=20.0, epoch=EPOCH, reason="test", complete=True
)

MIGRATED = [
    Event(10.0, 1, at.RECEIVED, "context-1"),
    Event(10.1, 1, at.SUBMITTED, "rid-1"),
    Event(10.2, 1, at.REGISTERED, None),
    Event(10.3, 1, at.DISPATCHED, None),
    Event(10.5, 1, at.FIRST_TOKEN, None),
    Event(12.0, 1, at.STOP_SEEN, "worker"),
    Event(12.0, 1, at.ABORT_ORDERED, None),
    Event(12.1, 1, at.ABORT_SENT, None),
    Event(12.2, 1, at.FIRST_TOKEN, None),
    Event(12.5, 1, at.ENDED, "migrated"),
]
OPEN = [Event(15.0, 2, at.RECEIVED, "context-2"), Event(15.5, 2, at.SUBMITTED, "rid-2")]
REFUSED = [Event(16.0, 3, at.REFUSED, "context-3")]
WORKER = [
    Event(1.0, 0, at.STAGE, "starting"),
    Event(5.0, 0, at.STAGE, "serving"),
    Event(11.0, 0, at.ASKED_TO_STOP, "asked to stop"),
    Event(11.0, 0, at.PHASE_BEGINS, "drain"),
    Event(12.0, 0, at.PHASE_ENDS, "drain: grace over"),
    Event(12.0, 0, at.PHASE_BEGINS, "migrate"),
]
ALL = sorted([*MIGRATED, *OPEN, *REFUSED, *WORKER])


def spans(trace: dict[str, Any], lane: int) -> dict[str, tuple[float, float]]:
    """Begin and end of each span of a lane, in the recorder's seconds."""
    return {
        entry["name"]: (
            round(entry["ts"] / 1e6 - EPOCH, 6),
            round((entry["ts"] + entry["dur"]) / 1e6 - EPOCH, 6),
        )
        for entry in trace["traceEvents"]
        if entry["ph"] == "X" and entry["tid"] == lane
    }


def test_states_of_a_request() -> None:
    trace = trace_of(ALL, SOURCE)
    assert spans(trace, 1) == {
        "request": (10.0, 12.5),
        "planning": (10.0, 10.1),
        "submitted": (10.1, 10.3),
        "waiting for the first token": (10.3, 10.5),
        "streaming": (10.5, 12.0),
        "migrating": (12.0, 12.5),
    }
    whole = next(entry for entry in trace["traceEvents"] if entry["name"] == "request")
    assert whole["args"] == {"context": "context-1", "rid": "rid-1", "ended": "migrated"}


def test_a_request_that_has_not_ended_lasts_until_now() -> None:
    assert spans(trace_of(ALL, SOURCE), 2) == {
        "request": (15.0, 20.0),
        "planning": (15.0, 15.5),
        "submitted": (15.5, 20.0),
    }


def test_a_request_whose_beginning_is_forgotten() -> None:
    trace = trace_of(MIGRATED[4:], SOURCE)
    assert spans(trace, 1) == {
        "request": (10.5, 12.5),
        "streaming": (10.5, 12.0),
        "migrating": (12.0, 12.5),
    }


def test_stages_and_phases_of_the_worker() -> None:
    assert spans(trace_of(ALL, SOURCE), 0) == {
        "starting": (1.0, 5.0),
        "serving": (5.0, 11.0),
        "phase: drain": (11.0, 12.0),
        "phase: migrate": (12.0, 20.0),
    }


def test_every_other_event_is_an_instant() -> None:
    trace = trace_of(ALL, SOURCE)
    instants = [entry["name"] for entry in trace["traceEvents"] if entry["ph"] == "i"]
    assert sorted(instants) == sorted(
        ["asked to stop", "registered", "abort ordered", "abort sent", "first token", "refused"]
    )


def test_nothing_recorded_is_a_trace_too() -> None:
    trace = trace_of([], SOURCE)
    assert spans(trace, 0) == {}
    ET.fromstring(draw(trace))


def test_files_are_whole_and_few(tmp_path: Path) -> None:
    folder = tmp_path / "deeper" / "flights"
    trace = trace_of(ALL, SOURCE)
    paths = [files.write(trace, folder) for _ in range(files.KEPT + 3)]
    assert len(set(paths)) == len(paths)
    kept = list(folder.iterdir())
    assert len(kept) == files.KEPT
    assert folder.stat().st_mode & 0o077 == 0
    assert json.loads(kept[0].read_text()) == trace


def test_a_picture_has_a_row_for_each_request() -> None:
    svg = draw(trace_of(ALL, SOURCE))
    texts = [element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]
    for name in ("worker", "request context-1", "request context-2", "request context-3"):
        assert name in texts
    assert "migrated" in texts


def test_a_picture_is_bounded() -> None:
    many = [
        Event(float(lane), lane, what, detail)
        for lane in range(1, 101)
        for what, detail in ((at.RECEIVED, f"c{lane}"), (at.ENDED, "complete"))
    ]
    svg = draw(trace_of(many, SOURCE), requests=10)
    texts = {element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("text")}
    assert {"request c91", "request c100", "90 earlier requests are not drawn"} <= texts
    assert "request c90" not in texts


@pytest.mark.parametrize("name", ["<&>", "…" * 100])
def test_names_of_others_do_not_break_a_picture(name: str) -> None:
    ET.fromstring(draw(trace_of([Event(1.0, 1, at.RECEIVED, name)], SOURCE)))


def test_draw_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files.write(trace_of(ALL, SOURCE), tmp_path)
    assert main(["draw", str(path)]) == 0
    assert path.with_suffix(".svg").read_text() == draw(trace_of(ALL, SOURCE))
    assert main(["draw", str(path), "--output", "-", "--requests", "0"]) == 0
    assert "<svg" in capsys.readouterr().out
    (tmp_path / "other").write_text("{}")
    assert main(["draw", str(tmp_path / "other")]) == 1
    assert "not a trace of ours" in capsys.readouterr().err
