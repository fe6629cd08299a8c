# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What must hold after every run. Each function says one thing, and returns what breaks it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.fakes.scheduler import FIRST_TOKEN
from trio_worker import constants

from .case import SETTLE, Request
from .record import Moment, Record, RequestRecord

SLACK = 0.06
"""Virtual seconds for what is not an explicit wait: polling of the registry goes up to 50 ms."""

SOCKET_REFUSES = "RuntimeError('abort failed')"
"""What the fake socket raises by script (``abort_send_errors``)."""

RETRIED_ABORTS = 1 + constants.ABORT_RETRY_LIMIT


@dataclass
class EngineView:
    """One rid as the scheduler saw it."""

    rid: str
    request: int
    dispatched: Moment
    aborts: list[Moment] = field(default_factory=list)
    """Matched while the scheduler held it, and aimed at it."""
    aborts_of_all: list[Moment] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each of them was."""
    finished: Moment | None = None
    finish: str | None = None
    echoed: Moment | None = None
    ignored: int = 0
    """Aborts that the script has it ignore."""
    warm_up: bool = True
    """Nothing but the prefix warm-up of parallel sampling, until a token comes."""

    @property
    def ended(self) -> Moment | None:
        return self.finished or self.echoed


@dataclass
class View:
    """A record, and what its journal says of each rid."""

    record: Record

    @cached_property
    def rids(self) -> dict[str, EngineView]:
        seen: dict[str, EngineView] = {}
        for order, entry in enumerate(self.record.journal.entries):
            rid = entry.rid
            moment = Moment(order, entry.time)
            match entry.event:
                case "dispatched":
                    assert rid is not None
                    seen[rid] = EngineView(rid, self.record.owner_of.get(rid, -1), moment)
                case "abort matched":
                    for view in seen.values():
                        if view.ended is not None:
                            continue
                        if rid is None:
                            view.aborts_of_all.append(moment)
                        elif view.rid.startswith(rid):
                            view.aborts.append(moment)
                case "output":
                    assert rid is not None
                    view = seen[rid]
                    view.emitted += entry.detail["ids"]
                    view.times += [entry.time] * len(entry.detail["ids"])
                    view.finish = entry.detail["finish"]
                    if view.finish is not None:
                        view.finished = moment
                case "abort ignored":
                    assert rid is not None
                    seen[rid].ignored += 1
                case "abort echoed":
                    assert rid is not None
                    seen[rid].echoed = moment
        return seen

    @cached_property
    def by_request(self) -> dict[int, list[EngineView]]:
        owned: dict[int, list[EngineView]] = defaultdict(list)
        for view in self.rids.values():
            owned[view.request].append(view)
        return owned

    @property
    def prefill(self) -> bool:
        """A prefill answers when it has finished, with no token and no finish reason."""
        return self.record.case.role == "prefill"

    def complete(self, index: int) -> bool:
        """Whether every choice has sent its final response (rule 129)."""
        if self.prefill:
            return any(rid.ended for rid in self.by_request[index])
        finals = {got.index for got in self.record.requests[index].got if got.finish}
        return len(finals) >= self.record.case.requests[index].choices

    def pairs(self) -> Iterator[tuple[int, Request, RequestRecord]]:
        for index, request in enumerate(self.record.case.requests):
            yield index, request, self.record.requests[index]

    def emitted(self, index: int, choice: int) -> list[int]:
        """Token ids that the engine made for one choice of a request, in order."""
        first = FIRST_TOKEN * (choice + 1)
        for view in self.by_request[index]:
            if view.emitted and view.emitted[0] == first:
                return view.emitted
        return []


Judge = Callable[[View], Iterator[str]]


def violations(record: Record) -> list[str]:
    """All that does not hold."""
    if record.crash:
        return [f"an error left the worker's tasks:\n{record.crash}"]
    view = View(record)
    return [text for judge in JUDGES for text in judge(view)]


# ---- tokens ----


def tokens_are_a_prefix(view: View) -> Iterator[str]:
    """Delivered tokens: exactly a prefix of what the engine made, for each choice (S6, D31)."""
    for index, request, record in view.pairs():
        delivered: dict[int, list[int]] = defaultdict(list)
        labels: dict[int, set[int]] = defaultdict(set)
        for got in record.got:
            for token in got.ids:
                choice = token // FIRST_TOKEN - 1
                delivered[choice].append(token)
                labels[choice].add(got.index)
        for choice, ids in delivered.items():
            emitted = view.emitted(index, choice)
            if ids == emitted[: len(ids)]:
                continue
            if request.mode == "native" and _is_echo(view, index, ids, emitted):
                continue
            yield f"request {index}, choice {choice}: got {ids}, the engine made {emitted}"
        for choice, indexes in labels.items():
            if len(indexes) > 1:
                yield f"request {index}, choice {choice}: under indexes {sorted(indexes)}"
        if len({min(indexes) for indexes in labels.values()}) < len(labels):
            yield f"request {index}: two choices under one index: {dict(labels)}"


def _is_echo(view: View, index: int, ids: list[int], emitted: list[int]) -> bool:
    """Native answers are opaque: an abort echo repeats the last token there (rule 119)."""
    echoed = any(rid.echoed for rid in view.by_request[index])
    return echoed and ids[:-1] == emitted[: len(ids) - 1] and ids[-2:-1] == ids[-1:]


def normal_end_is_whole(view: View) -> Iterator[str]:
    """Nobody gave up: every token and a final response for every choice."""
    for index, request, record in view.pairs():
        if record.ended is None or record.error or _given_up(record) or view.prefill:
            continue
        for choice in range(request.choices):
            got = [token for item in record.got for token in item.ids]
            mine = [token for token in got if token // FIRST_TOKEN - 1 == choice]
            emitted = view.emitted(index, choice)
            if len(mine) < len(emitted):
                yield f"request {index}, choice {choice}: ended normally with {mine} of {emitted}"
        finals = [item.index for item in record.got if item.finish]
        if sorted(finals) != sorted(set(finals)) or len(finals) != request.choices:
            yield f"request {index}: ended normally with final responses for {finals}"
        cut = any(rid.aborts for rid in view.by_request[index])
        if cut and any(item.finish in ("abort", "cancelled") for item in record.got):
            yield f"request {index}: ended normally, cut short by an abort of the worker's own"


def prefill_answers_in_order(view: View) -> Iterator[str]:
    """Where to fetch the KV cache first, what was reused last, and nothing else (rules 83, 85)."""
    if not view.prefill:
        return
    for index, _request, record in view.pairs():
        kinds = [got.kind for got in record.got]
        if kinds not in ([], ["bootstrap"], ["bootstrap", "cache hit"]):
            yield f"request {index}: {kinds}"
        if len(kinds) == 2 and not any(rid.finished for rid in view.by_request[index]):
            yield f"request {index}: a cache hit, and the engine had not finished"
        if record.ended is None or record.error or _given_up(record):
            continue
        # An abort echo has no prompt count, so tells of no cache.
        echoed = any(rid.echoed for rid in view.by_request[index])
        expected = 1 if echoed or _shutdown_came(view, record) else 2
        if len(kinds) < expected:
            yield f"request {index}: ended normally with {kinds}"


def errors_wait_for_tokens(view: View) -> Iterator[str]:
    """Rule 121: what the engine made before it failed is delivered before its error.

    A stalled sender is not waited for, and what the engine made in the same instant as its error
    may have been merged with it.
    """
    for index, request, record in view.pairs():
        failed = None if view.prefill else _failed_at(view, index, record)
        if failed is None or _given_up(record) or _shutdown_came(view, record):
            continue
        consumer = request.consumer
        if request.arm == "push" and (consumer.every or consumer.stalls_after is not None):
            continue
        got = {token for item in record.got for token in item.ids}
        for rid in view.by_request[index]:
            made = zip(rid.emitted, rid.times, strict=True)
            missing = [token for token, time in made if time < failed and token not in got]
            if missing:
                yield f"request {index}: {missing} were lost to {record.error} of {failed}"


def _failed_at(view: View, index: int, record: RequestRecord) -> float | None:
    """When the engine failed, if that ended the request."""
    if record.error in _MAPPED_ERRORS:
        ends = [
            rid.finished.time
            for rid in view.by_request[index]
            if rid.finished is not None and _failed_by_itself(rid)
        ]
        return min(ends, default=None)
    if record.error_text == "scripted: stream" and record.arrived is not None:
        for entry in view.record.journal.of("streams broken"):
            if entry.time >= record.arrived.time:
                return entry.time
    return None


def _shutdown_came(view: View, record: RequestRecord) -> bool:
    began = _shutdown_began(view.record)
    return began is not None and (record.landed is None or began.order < record.landed.order)


def finals_are_last(view: View) -> Iterator[str]:
    """Nothing follows a choice's final response."""
    for index, _request, record in view.pairs():
        finished: set[int] = set()
        for got in record.got:
            if got.index in finished:
                yield f"request {index}: choice {got.index} went on after its final response"
            if got.finish:
                finished.add(got.index)


def nothing_after_the_end(view: View) -> Iterator[str]:
    """Rule 121: nothing follows the error or the end; rules 51, 53: nothing follows a stop."""
    for index, _request, record in view.pairs():
        for fault in record.faults:
            yield f"request {index}: {fault}"
        for got in record.got:
            if record.ended is not None and got.moment.order > record.ended.order:
                yield f"request {index}: {got} after it had ended"
            if got.after_stop:
                yield f"request {index}: {got} was sent after the context had stopped"


def first_token_is_told_once(view: View) -> Iterator[str]:
    for index, _request, record in view.pairs():
        if record.first_token_notices > 1:
            yield f"request {index}: {record.first_token_notices} first tokens"
        told = any(got.ids for got in record.got)
        if told and not record.first_token_notices:
            yield f"request {index}: tokens came, but no first token was told"


# ---- outcomes ----


def outcome_follows_precedence(view: View) -> Iterator[str]:
    """Worker shutdown > client cancel > engine error > normal end; bare and typed (rule 111)."""
    for index, request, record in view.pairs():
        if record.ended is None or record.arrived is None:
            continue
        error = record.error
        if record.group:
            yield f"request {index}: {error} left: {record.error_text}"
        elif error == "EngineShutdown":
            yield from _judge_shutdown(view, index, request, record)
        elif error == "CancelledError":
            if record.owner_cancelled is None:
                yield f"request {index}: CancelledError although nobody cancelled its owner"
        elif error is not None:
            yield from _judge_error(view, index, request, record)
        elif record.owner_cancelled is not None:
            continue  # between two polls: nobody was there to be told
        elif record.stopped is not None and _finished_by_itself(view, index):
            continue  # nothing was cut short, and nobody listens
        elif _must_be_shutdown(view, index, record):
            yield f"request {index}: ended normally, unfinished, after the shutdown"
        elif view.complete(index) or _given_up(record):
            continue
        elif _may_be_error(view, index, request, record):
            yield f"request {index}: ended normally in spite of the engine's error"


def _judge_shutdown(
    view: View, index: int, request: Request, record: RequestRecord
) -> Iterator[str]:
    began = _shutdown_began(view.record)
    assert record.ended is not None
    if began is None or began.order > record.ended.order:
        yield f"request {index}: EngineShutdown without a shutdown"
    # A frame whose send() blocks can't be taken back; it may follow the decision.
    known = [got for got in record.got if record.landed and got.moment.order < record.landed.order]
    complete = len({got.index for got in known if got.finish}) >= request.choices
    if complete or (request.arm == "pull" and view.complete(index) and not view.prefill):
        yield f"request {index}: EngineShutdown after its last final response (rule 129)"
    if record.stopped is not None or not any(rid.aborts for rid in view.by_request[index]):
        return
    if any(_failed_by_itself(rid) for rid in view.by_request[index]):
        return  # an answer to one prompt of a batch; where it is native, the error is told in it
    for got in record.got:
        late = began is not None and got.moment.order > began.order
        if late and got.finish in ("abort", "cancelled"):
            yield f"request {index}: a final response of an abort before EngineShutdown (rule 113)"


def _judge_error(view: View, index: int, request: Request, record: RequestRecord) -> Iterator[str]:
    if _is_upstreams(view, index, record):
        return
    if not _may_be_error(view, index, request, record):
        yield f"request {index}: {record.error}: {record.error_text} came from nowhere"
    elif not record.error_text.startswith("scripted") and record.error not in _MAPPED_ERRORS:
        yield f"request {index}: {record.error}: {record.error_text} is not the engine's error"
    elif _must_be_shutdown(view, index, record):
        yield f"request {index}: {record.error} instead of EngineShutdown"
    elif (
        record.stopped is not None
        and record.error in _MAPPED_ERRORS
        and record.landed is not None
        and record.stopped.time < record.landed.time - constants.EGRESS_FLUSH_S - SLACK
    ):
        yield f"request {index}: {record.error} in spite of the client's stop"


def _is_upstreams(view: View, index: int, record: RequestRecord) -> bool:
    """SGLang's own merging fails where an abort echo, which alone has a text, meets waiting chunks.

    With the tap's hook it is ours that merges.
    """
    case = view.record.case
    return (
        (record.error, record.error_text) == ("KeyError", "'text'")
        and case.skip_tokenizer_init
        and not case.tapped_manager
        and any(rid.echoed for rid in view.by_request[index])
    )


_MAPPED_ERRORS = ("InvalidArgument", "HttpError")


def _may_be_error(view: View, index: int, request: Request, record: RequestRecord) -> bool:
    """Whether the script has an error that can have come out by then."""
    script = request.script
    if record.trouble_seen or script.registration_error or script.dispatch_error:
        return True
    if script.cancel_error is not None or (script.breakable and view.record.broken):
        return True
    if view.prefill or not any(_is_error(getattr(step, "finish", None)) for step in script.outputs):
        return False  # a prefill's consumer is told of the decode worker
    return any(rid.finish == "abort" for rid in view.by_request[index])


def _is_error(finish: Mapping[str, Any] | None) -> bool:
    return str((finish or {}).get("message", "")).startswith("scripted")


def _shutdown_began(record: Record) -> Moment | None:
    if record.shutdown is not None and not record.case.crash:
        return record.shutdown
    return record.refusing


def _must_be_shutdown(view: View, index: int, record: RequestRecord) -> bool:
    """Unfinished, and the shutdown began clearly before the outcome was decided."""
    began = _shutdown_began(view.record)
    if began is None or record.left is not None:
        return False
    if view.complete(index):
        return False
    assert record.arrived is not None
    if record.landed is None:
        return record.arrived.order > began.order
    return began.time < record.landed.time - constants.EGRESS_FLUSH_S - SLACK


def _given_up(record: RequestRecord) -> bool:
    """Somebody left before the end."""
    return bool(record.stopped or record.owner_cancelled or record.left)


# ---- aborts ----


def one_effective_abort(view: View) -> Iterator[str]:
    """Exactly one if the request was left unfinished, none if it had finished (D3)."""
    case = view.record.case
    for rid in view.rids.values():
        request = case.requests[rid.request]
        record = view.record.requests[rid.request]
        most = 1 if case.order_is_proven else RETRIED_ABORTS
        if len(rid.aborts) > most:
            yield f"{rid.rid}: {len(rid.aborts)} effective aborts, at {rid.aborts}"
        may = _first([*_left_unfinished(view, record), *_trouble(view, rid.request, record)])
        if rid.aborts and (may is None or may.order > rid.aborts[0].order):
            yield f"{rid.rid}: aborted at {rid.aborts[0]} without a reason"
        must = _first([*_left_unfinished(view, record), record.landed])
        if rid.aborts_of_all or must is None:
            continue
        known = max(must.time, rid.dispatched.time)
        # Rules 16, 28: an abort that could not be sent is made up for when the request leaves.
        slow = request.by_response_id or request.script.abort_send_errors
        if slow and must is not record.landed:
            known += constants.DRAIN_S + constants.FEEDER_CLOSE_S
        stopped = rid.aborts[0] if rid.aborts else rid.ended
        if stopped is None or stopped.time > known + SLACK:
            yield f"{rid.rid}: left running until {stopped}, given up at {must}"


def _left_unfinished(view: View, record: RequestRecord) -> Iterator[Moment | None]:
    """When somebody gave the request up, or the worker did."""
    yield from (record.stopped, record.owner_cancelled, record.left)
    if _shutdown_came(view, record):
        yield _shutdown_began(view.record)


def _trouble(view: View, index: int, record: RequestRecord) -> Iterator[Moment | None]:
    """An error ended the request while some of it ran; when exactly is SGLang's affair."""
    script = view.record.case.requests[index].script
    if record.trouble_seen or script.dispatch_error or (script.breakable and view.record.broken):
        yield record.arrived
    if any(_failed_by_itself(rid) for rid in view.by_request[index]):
        yield record.arrived


def _finished_by_itself(view: View, index: int) -> bool:
    """The engine came to the end of all that it was asked for."""
    rids = view.by_request[index]
    return bool(rids) and all(rid.finished and not rid.aborts for rid in rids)


def _failed_by_itself(rid: EngineView) -> bool:
    """The engine ended it with an abort that nobody had asked for: an error."""
    return rid.finish == "abort" and len(rid.aborts) + len(rid.aborts_of_all) == rid.ignored


def _first(moments: list[Moment | None]) -> Moment | None:
    return min((moment for moment in moments if moment), key=lambda m: m.order, default=None)


def aborts_follow_dispatch(view: View) -> Iterator[str]:
    """Rule 25: an abort that matches nothing would make the request unstoppable."""
    entries = view.record.journal.entries
    for order, entry in enumerate(entries):
        if entry.event != "abort matches nothing" or entry.rid is None:
            continue
        rid = view.rids.get(entry.rid)
        if rid is None or rid.dispatched.order > order:
            yield f"{entry.rid}: abort before dispatch, at {entry.time}"
        elif rid.ended is None or rid.ended.time < entry.time:
            yield f"{entry.rid}: abort at {entry.time}, long after it had ended at {rid.ended}"


# ---- bounds ----


def requests_end_in_time(view: View) -> Iterator[str]:
    """Drain 1 s, shutdown 1 s, abandoned at once; and nobody hangs."""
    leaving = constants.FEEDER_CLOSE_S + constants.EGRESS_FLUSH_S + SLACK
    for index, request, record in view.pairs():
        if record.ended is None:
            yield f"request {index} hung"
            continue
        assert record.arrived is not None
        if record.landed is None:
            continue
        landed = record.landed.time
        bounds = []
        if record.stopped is not None:
            bounds.append((constants.DRAIN_S, record.stopped, "the client's stop"))
        began = _shutdown_began(view.record)
        if began is not None:
            bounds.append((constants.SHUTDOWN_ABORT_S, began, "the shutdown"))
        if record.owner_cancelled is not None:
            bounds.append((0.0, record.owner_cancelled, "its owner's cancellation"))
        if record.left is not None:
            bounds.append((0.0, record.left, "the consumer had left"))
        for seconds, moment, what in bounds:
            since = max(moment.time, record.arrived.time)
            if landed > since + seconds + leaving:
                yield f"request {index} landed at {landed}, {what} was at {since}"
        if not bounds and landed > _natural_end(view, index, request, record) + leaving:
            yield f"request {index} landed at {landed}, long after its last output"


def _natural_end(view: View, index: int, request: Request, record: RequestRecord) -> float:
    """When a request that nobody stops has to be over."""
    assert record.arrived is not None
    ends = [rid.ended.time for rid in view.by_request[index] if rid.ended is not None]
    if any(rid.ended is None for rid in view.by_request[index]):
        return math.inf
    if not ends or request.script.registration_error:
        return math.inf
    consumer = request.consumer
    paced = len(record.got) * (consumer.every + view.record.case.pick_up)
    uploads = request.choices * (request.upload.seconds if request.upload else 0.0)
    return max(*ends, record.arrived.time, consumer.stalls_until) + paced + uploads + 0.1


def a_stopped_stream_that_has_ended_is_over(view: View) -> Iterator[str]:
    """The drain deadline is for streams that go on, not for consumers that read slowly."""
    for index, request, record in view.pairs():
        ends = [rid.ended.time if rid.ended else math.inf for rid in view.by_request[index]]
        if record.stopped is None or record.landed is None or not ends:
            continue
        uploads = request.choices * request.upload.seconds if request.upload else 0.0
        flush = constants.EGRESS_FLUSH_S if record.error else 0.0
        waits = uploads + flush + constants.FEEDER_CLOSE_S + SLACK
        late = max(*ends, record.stopped.time) + waits
        if record.landed.time > late:
            yield f"request {index} landed at {record.landed}, long after its stream"


def owners_wait_for_their_requests(view: View) -> Iterator[str]:
    """Rule 131: a cancelled façade waits for its request."""
    for index, _request, record in view.pairs():
        if record.error != "CancelledError" or record.ended is None or record.landed is None:
            continue
        if record.ended.order < record.landed.order:
            yield f"request {index}: the façade ended at {record.ended} before {record.landed}"


def serving_joins_in_time(view: View) -> Iterator[str]:
    record = view.record
    if record.refusing is None or record.joined is None:
        yield "the serving nursery was never joined"
        return
    bound = constants.FEEDER_CLOSE_S + constants.EGRESS_FLUSH_S + SLACK
    if record.joined.time > record.refusing.time + bound:
        yield f"the serving nursery was joined at {record.joined}, cancelled at {record.refusing}"


def what_waits_is_bounded(view: View) -> Iterator[str]:
    """A slow consumer makes chunks merge; it does not make memory grow (S6)."""
    case = view.record.case
    for index, request, record in view.pairs():
        # Of each choice: what was merged, and its last chunk, which stays apart (rule 121).
        read_at_once = max(case.merge_at + 1, 2 * request.choices)
        backlog = case.backlog_frames if request.arm == "push" else 0
        if record.most_responses > backlog + 1 + read_at_once:
            yield f"request {index}: {record.most_responses} responses waited"
        if record.most_chunks > case.merge_at + 1 + request.choices:
            yield f"request {index}: {record.most_chunks} chunks waited"


# ---- rest ----


def everything_is_at_rest(view: View) -> Iterator[str]:
    """Scheduler, registry, flights, live requests, tasks: empty; feeders: those that resist."""
    record = view.record
    for name, value in record.left_over.items():
        yield f"left over: {name}: {value}"
    resist = [request.script.resists_cancel_for or 0.0 for request in record.case.requests]
    for_long = sum(seconds > SETTLE for seconds in resist)
    if record.feeders_left > for_long:
        yield f"left over: {record.feeders_left} feeders, {for_long} resist"
    resistant = sum(seconds > 0 for seconds in resist)
    if record.feeders_left_behind > resistant:
        yield f"{record.feeders_left_behind} feeders left behind, {resistant} resist"


def nobody_complains(view: View) -> Iterator[str]:
    """No error that nobody retrieved, none in the log that was not scripted."""
    record = view.record
    yield from (f"loop: {text}" for text in record.loop_errors)
    yield from (f"unraisable: {text}" for text in record.unraisable)
    for time, level, text in record.log:
        if level in ("ERROR", "CRITICAL") and "scripted" not in text and SOCKET_REFUSES not in text:
            yield f"logged at {time}: {text}"


def no_garbage(view: View) -> Iterator[str]:
    """No cycle of ours: reference counting frees a request when it ends (rule 55)."""
    if view.record.garbage:
        yield f"{len(view.record.garbage)} cycles: " + "\n".join(view.record.garbage)


JUDGES: tuple[Judge, ...] = (
    tokens_are_a_prefix,
    normal_end_is_whole,
    prefill_answers_in_order,
    errors_wait_for_tokens,
    finals_are_last,
    nothing_after_the_end,
    first_token_is_told_once,
    outcome_follows_precedence,
    one_effective_abort,
    aborts_follow_dispatch,
    requests_end_in_time,
    a_stopped_stream_that_has_ended_is_over,
    owners_wait_for_their_requests,
    serving_joins_in_time,
    what_waits_is_bounded,
    everything_is_at_rest,
    nobody_complains,
    no_garbage,
)
