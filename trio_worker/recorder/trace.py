# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The recorder's events in Chrome's trace format, which Perfetto opens; pure.

One thread of the trace is one request, the first is the worker. States are spans, all else is an
instant. Times are microseconds since 1970, so that the traces of several workers lie on one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trio_worker.recorder import events as at
from trio_worker.recorder.ring import Event

Trace = dict[str, Any]

PLANNING: Final = "planning"
SUBMITTED: Final = "submitted"
WAITING: Final = "waiting for the first token"
STREAMING: Final = "streaming"
DRAINING: Final = "draining"
MIGRATING: Final = "migrating"

STATES: Final = {
    at.RECEIVED: PLANNING,
    at.SUBMITTED: SUBMITTED,
    at.DISPATCHED: WAITING,
    at.FIRST_TOKEN: STREAMING,
}
"""Which state an event begins. A stop begins one that only the end leaves."""

OPEN: Final = "not ended"
"""How a request ended that has not."""


@dataclass(frozen=True, slots=True)
class Source:
    """Whose events these are."""

    name: str
    pid: int
    now: float
    """When they were read, on their own clock."""
    epoch: float
    """What to add to their times to get seconds since 1970."""
    reason: str
    """Why they are written down."""
    complete: bool
    """Nothing has been forgotten."""


def trace_of(events: Sequence[Event], source: Source) -> Trace:
    """The trace of `events`, which are in the order of their times."""
    lanes: dict[int, list[Event]] = {at.WORKER: []}
    for event in events:
        lanes.setdefault(event.lane, []).append(event)
    entries = [_name(source, "process_name", 0, source.name)]
    for lane, happened in lanes.items():
        found = _of_worker(happened, source) if lane == at.WORKER else _of_request(happened, source)
        entries += ({"pid": source.pid, "tid": lane, **entry} for entry in found)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "program": "trio-worker",
            "reason": source.reason,
            "written_at_s": round(source.now + source.epoch, 6),
            "complete": source.complete,
        },
        "traceEvents": entries,
    }


def _of_request(events: list[Event], source: Source) -> Iterator[dict[str, Any]]:
    details = {event.what: event.detail for event in events}
    ended = next((event for event in events if event.what == at.ENDED), None)
    end = source.now if ended is None else ended.time
    context = details.get(at.RECEIVED) or details.get(at.REFUSED)
    yield _name(source, "thread_name", events[0].lane, f"request {context or events[0].lane}")
    if at.REFUSED not in details:
        arguments = {
            "context": context,
            "rid": details.get(at.SUBMITTED),
            "ended": OPEN if ended is None else ended.detail,
        }
        yield _span(source, "request", events[0].time, end, arguments)
    state, since = "", 0.0
    for event in events:
        following = STATES.get(event.what)
        if event.what == at.STOP_SEEN:
            following = DRAINING if event.detail == "client" else MIGRATING
        if following is not None and state not in (DRAINING, MIGRATING):
            if state:
                yield _span(source, state, since, event.time)
            state, since = following, event.time
        elif event.what != at.ENDED:
            yield _instant(source, event)
    if state:
        yield _span(source, state, since, end)


def _of_worker(events: list[Event], source: Source) -> Iterator[dict[str, Any]]:
    yield _name(source, "thread_name", at.WORKER, "worker")
    stage: Event | None = None
    running: dict[str, float] = {}
    for event in events:
        name, _, outcome = (event.detail or "").partition(": ")
        if event.what in (at.STAGE, at.ASKED_TO_STOP) and stage is not None:
            yield _span(source, stage.detail or "", stage.time, event.time)
            stage = None
        if event.what == at.STAGE:
            stage = event
        elif event.what == at.PHASE_BEGINS:
            running[name] = event.time
        elif event.what == at.PHASE_ENDS and name in running:
            yield _span(source, f"phase: {name}", running.pop(name), event.time, {"ended": outcome})
        else:
            yield _instant(source, event)
    if stage is not None:
        yield _span(source, stage.detail or "", stage.time, source.now)
    for name, since in running.items():
        yield _span(source, f"phase: {name}", since, source.now, {"ended": OPEN})


def _micros(source: Source, time: float) -> int:
    return round((time + source.epoch) * 1e6)


def _name(source: Source, kind: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": source.pid, "tid": lane, "args": {"name": name}}


def _span(
    source: Source, name: str, begin: float, end: float, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    start = _micros(source, begin)
    return {
        "ph": "X",
        "name": name,
        "ts": start,
        "dur": _micros(source, end) - start,
        "args": arguments or {},
    }


def _instant(source: Source, event: Event) -> dict[str, Any]:
    return {
        "ph": "i",
        "s": "t",
        "name": event.what,
        "ts": _micros(source, event.time),
        "args": {} if event.detail is None else {"detail": event.detail},
    }
