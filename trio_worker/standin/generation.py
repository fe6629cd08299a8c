# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler itself: queue, prefill, steps, aborts and faults. No clock, no socket, no SGLang.

Every step carries one chunk of every running request. What is special about a request (its first
row, its last one, a fault) is known beforehand, so it is written into a calendar: the step at which
the request has its *turn*. Between turns it sits in the roster and costs no Python of its own.

All times are seconds of one monotonic clock, given in by the caller.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trio_worker.standin.request import FinishReason, Phase, Request, abort_reason
from trio_worker.standin.roster import Roster
from trio_worker.standin.script import FOREVER, Fault, FaultKind
from trio_worker.standin.tokens import chunk_table, letter_at
from trio_worker.standin.wire import Row, embedding_columns, token_columns

QUEUE_FULL: FinishReason = {
    "type": "abort",
    "status_code": 503,
    "message": "The request queue is full.",
}


class Outlet(Protocol):
    """What the generation needs from its process."""

    def echo(self, request: Request, reason: FinishReason | None) -> None:
        """Tell the tokenizer that a request without output is gone (SGLang's AbortReq echo)."""

    def admitted(self, request: Request) -> None:
        """A request left the queue; its prefill begins."""

    def started(self, request: Request) -> None:
        """Its prefill is over; the next step carries its first token."""

    def strike(self, fault: Fault) -> None:
        """Die or hang; returns after a hang that ends."""

    def note(self, event: str, **fields: Any) -> None:
        """Write into the event log."""


@dataclass(frozen=True, slots=True)
class Limits:
    """max_running: requests that run at once; queue_limit: that wait; None is without limit."""

    max_running: int | None = None
    queue_limit: int | None = None
    prefill_ms: float = 0.0
    tokens_per_step: int = 1


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Columns of the messages of one step; None where there is nothing to send."""

    tokens: dict[str, Any] | None = None
    embeddings: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Aborted:
    """Whom an abort request reached: to end, already ending, and those that ignore it."""

    hit: list[str]
    repeated: list[str]
    ignored: list[str]


class Generation:
    """State of the stand-in scheduler. Not thread-safe; nothing in it blocks."""

    def __init__(
        self,
        limits: Limits,
        alphabet: Sequence[int],
        outlet: Outlet,
        *,
        dp_rank: int | None = None,
        with_prompt_logprobs: bool = True,
        version_spans: Callable[[Request], Any] = lambda request: None,
    ) -> None:
        self.limits = limits
        self.alphabet = tuple(alphabet)
        self.roster = Roster()
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.paused = False
        self.step_number = 0
        self.tokens = 0
        self.arrived = 0
        self.aborts_received = 0
        self._outlet = outlet
        self._dp_rank = dp_rank
        self._with_prompt_logprobs = with_prompt_logprobs
        self._version_spans = version_spans
        self._chunks = chunk_table(self.alphabet, limits.tokens_per_step)
        self._calendar: dict[int, list[Request]] = {}
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer_numbers = itertools.count()
        self._burst = 0

    # What is asked from outside

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def steps_wanted(self) -> bool:
        """Whether a step would ever do something, without a timer or an arrival before it."""
        return not self.paused and bool(self._calendar)

    def next_timer(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def take_burst(self) -> int:
        """Steps that a burst fault wants in this tick; asked once a tick."""
        burst, self._burst = self._burst, 0
        return burst

    def used_tokens(self) -> int:
        """KV tokens that the running requests hold."""
        return sum(r.prompt_tokens + self.tokens_of(r) for r in self.running.values())

    def tokens_of(self, request: Request) -> int:
        """Generated and sent so far."""
        if not request.in_roster:
            return request.produced
        steps = self.step_number + 1 - request.base_step
        return request.produced + steps * self.limits.tokens_per_step

    def gauges(self) -> dict[str, int]:
        return {
            "running": len(self.running),
            "waiting": len(self.waiting),
            "arrived": self.arrived,
            "aborts_received": self.aborts_received,
            "steps": self.step_number,
            "tokens": self.tokens,
        }

    def submit(self, request: Request, now: float) -> None:
        """A request arrives: it is refused, queued, or admitted at once."""
        self.arrived += 1
        self._outlet.note("arrive", rid=request.rid, prompt_tokens=request.prompt_tokens)
        fault = request.on_arrival
        if fault is not None:
            self._note_fault(request, fault)
            if fault.kind is FaultKind.ERROR:
                self._send_echo(request, abort_reason(fault.message, fault.status, fault.err_type))
                return
            self._outlet.strike(fault)
        limit = self.limits.queue_limit
        if limit is not None and not self._room_to_run() and len(self.waiting) >= limit:
            self._send_echo(request, QUEUE_FULL)
            return
        self.waiting[request.rid] = request
        self._admit(now)

    def abort(
        self,
        now: float,
        *,
        rid: str = "",
        abort_all: bool = False,
        message: str | None = None,
        reason: FinishReason | None = None,
    ) -> Aborted:
        """End every request whose id begins with rid, as Scheduler.abort_request does.

        One without output is echoed to the tokenizer, with reason; one with output gets one more
        step, whose row says abort (and 503 if a message came along).
        """
        self.aborts_received += 1
        outcome = Aborted([], [], [])
        for request in [*self.waiting.values(), *self.running.values()]:
            if not abort_all and not request.rid.startswith(rid):
                continue
            if request.aborts_to_ignore > 0:
                request.aborts_to_ignore -= 1
                outcome.ignored.append(request.rid)
            elif request.to_finish is not None:
                outcome.repeated.append(request.rid)
            else:
                outcome.hit.append(request.rid)
                self._end(request, now, message, reason)
        self._outlet.note(
            "abort",
            rid=rid,
            abort_all=abort_all,
            hit=outcome.hit,
            repeated=outcome.repeated,
            ignored=outcome.ignored,
        )
        self._admit(now)
        return outcome

    def pause(self, *, retract: bool) -> None:
        """No steps until resume(). With retract, the running go back to the head of the queue."""
        self.paused = True
        if not retract:
            return
        back = {}
        for request in self.running.values():
            self._forget_turn(request)
            self._enter(request, Phase.WAITING)
            request.retractions += 1
            back[request.rid] = request
        self.waiting = back | self.waiting
        self.running = {}

    def resume(self, now: float) -> None:
        self.paused = False
        self._admit(now)

    def advance(self, now: float) -> None:
        """Do what timers have come due: prefills that end, stalls, delayed echoes."""
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2](now)

    def call_at(self, when: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._timer_numbers), action))

    def step(self, now: float) -> StepOutput:
        """Generate one chunk for every request that is due one."""
        self.step_number = step = self.step_number + 1
        due = self._calendar.pop(step, [])
        for request in due:
            request.turn = 0
            self._leave_roster(request, step)

        size, per_step = len(self._chunks), self.limits.tokens_per_step
        shift = step * per_step
        turned = shift % size
        chunks = self._chunks[turned:] + self._chunks[:turned]
        dense_ids = [chunks[letter] for letter in self.roster.letters]
        dense_counts = [count + shift for count in self.roster.counts]
        self.tokens += len(dense_ids) * per_step

        rows = [row for request in due if (row := self._turn(request, step, now)) is not None]
        # Before planning: that lets requests join the roster of the next step.
        output = self._output(dense_ids, dense_counts, rows)
        for row in rows:
            if row.finished is None and row.request.phase is Phase.RUNNING:
                self._plan(row.request)
        self._admit(now)
        return output

    # Turns

    def _output(self, ids: list[array[int]], counts: list[int], rows: list[Row]) -> StepOutput:
        token_rows = [row for row in rows if not row.request.is_embedding]
        embedding_rows = [row for row in rows if row.request.is_embedding]
        tokens = None
        if ids or token_rows:
            tokens = token_columns(
                self.roster,
                ids,
                counts,
                token_rows,
                self.alphabet,
                dp_rank=self._dp_rank,
                with_prompt_logprobs=self._with_prompt_logprobs,
            )
        return StepOutput(tokens, embedding_columns(embedding_rows) if embedding_rows else None)

    def _turn(self, request: Request, step: int, now: float) -> Row | None:
        """The row of a request that has its turn; None if it stalls."""
        while request.to_finish is None and self._strikes_now(request):
            fault = request.strikes.pop(0)
            self._note_fault(request, fault)
            if fault.kind is FaultKind.ERROR:
                request.to_finish = abort_reason(fault.message, fault.status, fault.err_type)
                return self._row(request, array("q"), step)
            if fault.kind is FaultKind.RETRACT:
                request.retractions += 1
                row = self._row(request, array("q"), step)
                if fault.ms:
                    self._stall(request, fault.ms, now)
                return row
            if fault.kind is FaultKind.STALL:
                self._stall(request, fault.ms, now)
                return None
            if fault.kind is FaultKind.BURST:
                self._burst = max(self._burst, fault.size)
            else:
                self._outlet.strike(fault)
        reached = request.produced + (step + 1 - request.base_step) * self.limits.tokens_per_step
        count = max(0, min(request.next_stop, reached) - request.produced)
        return self._row(request, self._ids(request, count), step)

    @staticmethod
    def _strikes_now(request: Request) -> bool:
        return bool(request.strikes) and request.strikes[0].at == request.produced + 1

    def _row(self, request: Request, ids: array[int], step: int) -> Row:
        first, request.sent_first = not request.sent_first, True
        request.produced += len(ids)
        request.base_step = step + 1
        self.tokens += len(ids)
        row = Row(request, ids, request.produced, first)
        if request.to_finish is not None:
            row.finished = request.to_finish
        elif request.produced == request.ending.length and not request.strikes:
            row.finished = request.ending.reason
        if row.finished is not None:
            row.weight_versions = self._version_spans(request)
            self._enter(request, Phase.DONE)
            del self.running[request.rid]
            self._note_finish(request, row.finished)
        return row

    def _ids(self, request: Request, count: int) -> array[int]:
        size = len(self.alphabet)
        letter = letter_at(request.prompt_ids, request.prompt_tokens + request.produced, size)
        special = request.ending.last_token
        ends = special is not None and request.produced + count == request.ending.length
        if count == self.limits.tokens_per_step and not ends:
            return self._chunks[letter]
        ids = array("q", [self.alphabet[(letter + k) % size] for k in range(count)])
        if ends and special is not None and count:
            ids[-1] = special
        return ids

    def _plan(self, request: Request) -> None:
        """Find the next turn; until then the roster carries the request, if it sends every step."""
        step = self.step_number + 1
        per_step = self.limits.tokens_per_step
        left = request.next_stop - request.produced
        turn = step + max(1, -(-left // per_step)) - 1
        if request.to_finish is not None or not request.sent_first or request.logprobs is not None:
            turn = step
        elif request.stream_interval > 1:
            turn = min(turn, self._next_emission(request, step))
        elif turn > step:
            size = len(self.alphabet)
            letter = letter_at(request.prompt_ids, request.prompt_tokens + request.produced, size)
            self.roster.join(
                request,
                letter=(letter - step * per_step) % size,
                count=request.produced - (step - 1) * per_step,
            )
        request.turn = turn
        self._calendar.setdefault(turn, []).append(request)

    def _forget_turn(self, request: Request) -> None:
        """Take a request off the calendar and out of the roster, up to date for the next step."""
        if request.turn:
            due = self._calendar[request.turn]
            due.remove(request)
            if not due:
                del self._calendar[request.turn]
            request.turn = 0
        self._leave_roster(request, self.step_number + 1)

    def _next_emission(self, request: Request, step: int) -> int:
        """SGLang sends at 1, 1 + interval, 1 + 2 x interval ... tokens (its output_streamer.py)."""
        per_step = self.limits.tokens_per_step
        interval = request.stream_interval
        wanted = ((request.produced - 1) // interval + 1) * interval + 1
        return step + max(1, -(-(wanted - request.produced) // per_step)) - 1

    # Coming and going

    def _room_to_run(self) -> bool:
        limit = self.limits.max_running
        return not self.paused and (limit is None or len(self.running) < limit)

    def _admit(self, now: float) -> None:
        while self.waiting and self._room_to_run():
            request = self.waiting.pop(next(iter(self.waiting)))
            self.running[request.rid] = request
            self._enter(request, Phase.PREFILL)
            self._outlet.admitted(request)
            ms = self.limits.prefill_ms if request.prefill_ms is None else request.prefill_ms
            if ms:
                self._later(request, ms, now, self._begin)
            else:
                self._begin(request, now)

    def _begin(self, request: Request, now: float) -> None:
        self._outlet.started(request)
        self._go_on(request, now)

    def _go_on(self, request: Request, now: float) -> None:
        self._enter(request, Phase.RUNNING)
        request.base_step = self.step_number + 1
        self._plan(request)

    def _stall(self, request: Request, ms: float, now: float) -> None:
        self._enter(request, Phase.STALLED)
        self._later(request, ms, now, self._go_on)

    def _later(
        self, request: Request, ms: float, now: float, action: Callable[[Request, float], None]
    ) -> None:
        if ms == FOREVER:
            return
        ticket = request.ticket

        def run(now: float) -> None:
            if request.ticket == ticket:
                action(request, now)

        self.call_at(now + ms / 1000, run)

    @staticmethod
    def _enter(request: Request, phase: Phase) -> None:
        request.phase = phase
        request.ticket += 1

    def _leave_roster(self, request: Request, step: int) -> None:
        if request.in_roster:
            self.roster.leave(request)
            request.produced += (step - request.base_step) * self.limits.tokens_per_step
            request.base_step = step

    def _end(
        self, request: Request, now: float, message: str | None, reason: FinishReason | None
    ) -> None:
        if request.phase in (Phase.WAITING, Phase.PREFILL):
            queue = self.waiting if request.phase is Phase.WAITING else self.running
            del queue[request.rid]
            self._enter(request, Phase.DONE)
            if not request.echo_ms:
                self._send_echo(request, reason)
            else:
                self._later(request, request.echo_ms, now, lambda r, _: self._send_echo(r, reason))
            return
        request.to_finish = abort_reason(message, 503) if message else abort_reason()
        self._forget_turn(request)
        if request.echo_ms:
            self._stall(request, request.echo_ms, now)
        elif request.phase is Phase.STALLED:
            self._go_on(request, now)
        else:
            self._plan(request)

    def _send_echo(self, request: Request, reason: FinishReason | None) -> None:
        request.phase = Phase.DONE
        self._outlet.echo(request, reason)
        self._note_finish(request, reason or abort_reason("echo"))

    def _note_finish(self, request: Request, reason: FinishReason) -> None:
        self._outlet.note(
            "finish",
            rid=request.rid,
            type=reason["type"],
            status=reason.get("status_code"),
            tokens=request.produced,
            running=len(self.running),
            waiting=len(self.waiting),
        )

    def _note_fault(self, request: Request, fault: Fault) -> None:
        self._outlet.note("fault", rid=request.rid, kind=fault.kind.value, at=fault.at)
