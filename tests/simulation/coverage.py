# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Which situations a run came into, so that it shows what the drawn cases cover."""

from __future__ import annotations

from collections.abc import Iterator

from trio_worker import constants

from .case import Request
from .invariants import View
from .record import Moment, Record, RequestRecord

SITUATIONS = (
    "push",
    "pull",
    "n > 1",
    "batch",
    "session",
    "text",
    "native",
    "prefill",
    "without the tap's hook",
    "50 chunks in one tick",
    "50 chunks in one tick, slow reader",
    "more waits than is sent",
    "consumer lost while it is sent to",
    "consumer leaves a pull: aclose",
    "consumer leaves a pull: drop",
    "owner cancelled",
    "stop, then shutdown",
    "shutdown, then stop",
    "a last response, then shutdown (rule 129)",
    "drain timed out",
    "abort echoed",
    "abort ignored",
    "abort refused by the socket",
    "abort repeated",
    "stream resists",
    "retracted",
    "engine paused",
    "upload",
    "upload failed",
    "stream broken while chunks wait",
    "engine error while frames wait",
    "ended with EngineShutdown",
    "ended with InvalidArgument",
    "ended with HttpError",
    "ended with CancelledError",
    "came to a closed door",
    *(
        f"{what} {when}"
        for what in ("stop", "shutdown", "crash", "owner cancelled")
        for when in (
            "before registration",
            "before dispatch",
            "before the first output",
            "between outputs",
            "after the last output",
        )
    ),
)
"""Every situation that is counted."""


def situations(record: Record) -> set[str]:
    """The situations of one run; each is one of `SITUATIONS`."""
    view = View(record)
    found = {name for index, _, _ in view.pairs() for name in _of_request(view, index)}
    events = {entry.event for entry in record.journal.entries}
    found.update(
        name
        for event, name in (
            ("abort echoed", "abort echoed"),
            ("abort ignored", "abort ignored"),
            ("abort refused by the socket", "abort refused by the socket"),
            ("stream gave in", "stream resists"),
            ("paused", "engine paused"),
        )
        if event in events
    )
    if not record.case.tapped_manager:
        found.add("without the tap's hook")
    return found


def _of_request(view: View, index: int) -> Iterator[str]:
    request, record = view.record.case.requests[index], view.record.requests[index]
    if record.arrived is None:
        return
    yield request.arm
    yield from _kinds(view, request)
    yield from _engine(view, index, request, record)
    yield from _ends(view, index, record)
    yield from _consumer(view, request, record)
    began = view.record.shutdown
    shutdown = "crash" if view.record.case.crash else "shutdown"
    for what, moment in (
        ("stop", record.stopped),
        (shutdown, began),
        ("owner cancelled", record.owner_cancelled),
    ):
        if moment is not None and _while_live(record, moment):
            yield f"{what} {_when(view, index, moment)}"


def _kinds(view: View, request: Request) -> Iterator[str]:
    if (request.n or 1) > 1:
        yield "n > 1"
    if request.batch is not None:
        yield "batch"
    if request.session:
        yield "session"
    if request.mode != "tokens":
        yield request.mode
    if view.prefill:
        yield "prefill"


def _engine(view: View, index: int, request: Request, record: RequestRecord) -> Iterator[str]:
    rids = view.by_request[index]
    slow = bool(request.consumer.every) or request.consumer.stalls_after is not None
    times = [time for rid in rids for time in rid.times]
    if any(times.count(time) >= 50 for time in set(times)):
        yield "50 chunks in one tick"
        if slow:
            yield "50 chunks in one tick, slow reader"
    if any(len(rid.aborts) > 1 for rid in rids):
        yield "abort repeated"
    if any(type(step).__name__ == "Retract" for step in request.script.outputs) and times:
        yield "retracted"
    if record.uploads:
        yield "upload"
    if request.upload is not None and request.upload.fails and record.trouble_seen:
        yield "upload failed"
    if record.most_chunks > 1 and record.error_text == "scripted: stream":
        yield "stream broken while chunks wait"
    failed = record.error in ("InvalidArgument", "HttpError")
    if failed and request.arm == "push" and record.most_responses > 1:
        yield "engine error while frames wait"


def _ends(view: View, index: int, record: RequestRecord) -> Iterator[str]:
    if record.error in ("EngineShutdown", "InvalidArgument", "HttpError", "CancelledError"):
        yield f"ended with {record.error}"
    if record.error == "EngineShutdown" and record.landed is None:
        yield "came to a closed door"
    if record.owner_cancelled is not None:
        yield "owner cancelled"
    began, landed, stopped = view.record.shutdown, record.landed, record.stopped
    if landed is None:
        return
    if began is not None and began.order < landed.order:
        if stopped is not None and stopped.order < landed.order:
            first = stopped.order < began.order
            yield "stop, then shutdown" if first else "shutdown, then stop"
        if record.error is None and stopped is None and view.complete(index):
            yield "a last response, then shutdown (rule 129)"
    if stopped is not None and landed.time >= stopped.time + constants.DRAIN_S:
        yield "drain timed out"


def _consumer(view: View, request: Request, record: RequestRecord) -> Iterator[str]:
    if record.most_responses > view.record.case.backlog_frames or record.most_chunks > 1:
        yield "more waits than is sent"
    if record.left is not None and request.consumer.leaves_after is not None:
        yield f"consumer leaves a pull: {request.consumer.leaves_how}"
    lost = any(
        act.verb == "lose" and view.record.case.requests[act.request] is request
        for act in view.record.case.acts
    )
    if lost and request.arm == "push" and record.got and record.stopped is not None:
        yield "consumer lost while it is sent to"


def _while_live(record: RequestRecord, moment: Moment) -> bool:
    assert record.arrived is not None
    ended = record.landed or record.ended
    return record.arrived.order <= moment.order and (ended is None or moment.order <= ended.order)


def _when(view: View, index: int, moment: Moment) -> str:
    rids = view.by_request[index]
    registered = [
        order
        for order, entry in enumerate(view.record.journal.entries)
        if entry.event == "registered" and view.record.owner_of.get(entry.rid or "") == index
    ]
    if not registered or registered[0] >= moment.order:
        return "before registration"
    if not any(rid.dispatched.order < moment.order for rid in rids):
        return "before dispatch"
    if all(rid.ended is not None and rid.ended.order < moment.order for rid in rids):
        return "after the last output"
    spoke = any(
        entry.event == "output" and view.record.owner_of.get(entry.rid or "") == index
        for entry in view.record.journal.entries[: moment.order]
    )
    return "between outputs" if spoke else "before the first output"
