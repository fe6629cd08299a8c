# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Faults put into the code under test, to show that the simulation finds each of them.

A mutant replaces a line in the source of one function. When that line is gone, say so here: a
mutant that no longer applies proves nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import rig  # first: it imports SGLang

# isort: split
import compat.facade
import trio_worker.requests.backlog
import trio_worker.requests.outcome
import trio_worker.responses.echo
import trio_worker.responses.finish
from compat.egress import PullEgress
from compat.feeders import Feeders
from compat.handover import Handover
from compat.senders import PushEgress
from compat.tap import Tap, TapMixin
from tests.fakes.script import EngineScript, Hold, Output
from trio_worker.requests.abort import Aborts
from trio_worker.requests.live import LiveRequests
from trio_worker.requests.outcome import Outcome
from trio_worker.requests.request import Request as LiveRequest
from trio_worker.roles.decode import DecodeRequests

from .case import Act, Case, Consumer, Request

assert rig


@dataclass(frozen=True)
class Mutant:
    """`owner.name` with `old` replaced by `new`."""

    what: str
    owner: Any
    name: str
    old: str
    new: str
    case: Case | None = None
    """Where chance needs more than some hundred seeds: a case that shows it."""


BROKEN_WHILE_CHUNKS_WAIT = Case(
    0,
    (
        Request(
            EngineScript(outputs=(*[Output(0.1)] * 20, Hold()), breakable=True),
            arm="pull",
            consumer=Consumer(stalls_after=1, stalls_until=5.0),
        ),
    ),
    (Act("break streams", at=1.05),),
)

MUTANTS = (
    # ---- aborts ----
    Mutant(
        "aborts before dispatch",
        Aborts,
        "order",
        "state is not None and _dispatched(state) is not False",
        "state is not None",
    ),
    Mutant(
        "does not wait for dispatch in the abort task",
        Aborts,
        "_abort_when_dispatched",
        "await self._wait_dispatched(flight, state)",
        "pass",
    ),
    Mutant(
        "never orders an abort",
        LiveRequest,
        "_order_abort",
        "self._owner.aborts.order(self._flight, self.context_id, self._abort_ended)",
        "pass",
    ),
    Mutant(
        "forgets the abort when it leaves",
        Aborts,
        "leave",
        "return self._submit(flight.rid, context_id) is AbortEnd.SENT",
        "return False",
    ),
    Mutant(
        "aborts twice",
        Aborts,
        "_send",
        "self._manager.abort_request(rid=rid, abort_all=False)",
        "self._manager.abort_request(rid=rid); "
        "vars(self._manager.rid_to_state[rid]).update(abort_sent=False); "
        "self._manager.abort_request(rid=rid)",
    ),
    Mutant(
        "starts abort tasks in the caller's context",
        Aborts,
        "_start",
        "self._context.copy().run(self._nursery.start_soon, self._known, pending, task, *args)",
        "self._nursery.start_soon(self._known, pending, task, *args)",
    ),
    Mutant(
        "leaves the stream open",
        LiveRequest,
        "_leave",
        "feeder.cancel()",
        "pass",
    ),
    # ---- order and number of tokens ----
    Mutant(
        "delivers in place while chunks wait",
        Handover,
        "put",
        "if self.parked:",
        "if self.deliver is not None:",
    ),
    Mutant(
        "rings and stays parked",
        Handover,
        "ring",
        "self.parked = False",
        "pass",
    ),
    Mutant(
        "taps in place while chunks wait",
        Tap,
        "set",
        "if handover.parked:",
        "if handover.deliver is not None:",
    ),
    Mutant(
        "loses what a tap has left waiting",
        Tap,
        "take",
        "outputs if len(outputs) == 1 else [self._merged(outputs)]",
        "[outputs[-1]]",
    ),
    Mutant(
        "takes and does not clear",
        Tap,
        "take",
        "state.out_list = []",
        "pass",
    ),
    Mutant(
        "an error overtakes chunks",
        Handover,
        "receive",
        "if self._pending or self.tap is not None:",
        "if self._error is None and (self._pending or self.tap is not None):",
    ),
    Mutant(
        "sends in place while frames wait",
        PushEgress,
        "send",
        "if self._in_place:",
        "if self._in_place or self.held:",
    ),
    Mutant(
        "returns before its frames are sent",
        PushEgress,
        "finish",
        "await self._wait_empty()",
        "pass",
    ),
    Mutant(
        "does not flush before an error",
        PushEgress,
        "flush",
        "await self._wait_empty()",
        "pass",
    ),
    Mutant(
        "sends what it had discarded",
        PushEgress,
        "discard",
        "self.frames.clear()",
        "self._discarded = False",
    ),
    Mutant(
        "does not wait for room",
        LiveRequest,
        "_read",
        "await self._unless_the_client_leaves(egress.wait_room)",
        "pass",
    ),
    Mutant(
        "parks again without a look at its egress",
        Handover,
        "receive",
        "if woken:",
        "if False:",
    ),
    Mutant(
        "leaves the last output to be merged with what waits",
        Tap,
        "_leave_the_last",
        "if waiting:",
        "if False:",
    ),
    Mutant(
        "merges an error with what waits",
        trio_worker.requests.backlog,
        "merge_by_stream",
        'if meta_info.get("finish_reason"):',
        "if False:",
    ),
    Mutant(
        "drops what waits with the tap of a broken stream",
        TapMixin,
        "_stream_one_response",
        "for waiting in tap.take():",
        "for waiting in []:",
        BROKEN_WHILE_CHUNKS_WAIT,
    ),
    Mutant(
        "does not merge what waits",
        Handover,
        "put",
        "if len(pending) > self._merge_at and self.merge is not None:",
        "if False:",
    ),
    Mutant(
        "fetches the newest response first",
        PullEgress,
        "__anext__",
        "self._waiting.popleft()",
        "self._waiting.pop()",
    ),
    Mutant(
        "ends a pull before its responses are fetched",
        PullEgress,
        "__anext__",
        "while not self._waiting:",
        "while not self._waiting or self._closed:",
    ),
    Mutant(
        "sends after the client's stop",
        LiveRequest,
        "_relay",
        "if self.client_left or self.context.is_stopped():",
        "if self.client_left and self.shutting_down:",
    ),
    Mutant(
        "repeats the last token of an abort echo",
        trio_worker.responses.echo,
        "new_ids_in_echo",
        "return new if 0 <= new < len(output_ids) else None",
        "return None",
    ),
    # ---- outcomes ----
    Mutant(
        "an error has precedence over a shutdown",
        trio_worker.requests.outcome,
        "decide",
        "if shutting_down and not complete:",
        "if shutting_down and not complete and error is None:",
    ),
    Mutant(
        "a shutdown ends as if all was well",
        trio_worker.requests.outcome,
        "decide",
        "if shutting_down and not complete:",
        "if False:",
    ),
    Mutant(
        "takes a request for complete before it has flushed",
        LiveRequest,
        "_put_outcome",
        "complete = finished and self._flushed",
        "complete = finished",
    ),
    Mutant(
        "does not send the end of a finished stream during a shutdown",
        LiveRequest,
        "_put_outcome",
        "if finished and not self._flushed and not self.client_left:",
        "if False:",
    ),
    Mutant(
        "sends the final response of an abort before it migrates",
        trio_worker.responses.finish,
        "raise_for_abort",
        "if shutting_down:",
        "if False:",
    ),
    Mutant(
        "takes a batch for complete after its first prompt",
        DecodeRequests,
        "_native_generate_stream",
        "NativeSubmission(stream, choices)",
        "NativeSubmission(stream, 1)",
    ),
    Mutant(
        "raises into the nursery",
        LiveRequest,
        "run",
        "error = caught",
        "raise",
    ),
    Mutant(
        "does not tell the requests of a shutdown",
        LiveRequests,
        "migrate_all",
        "request.stop_for_shutdown()",
        "pass",
    ),
    Mutant(
        "admits to a nursery that is closed",
        LiveRequests,
        "admit",
        "self.migrating or self._serving.cancel_scope.cancel_called",
        "self.migrating",
    ),
    Mutant(
        "a prefill does not say where to fetch the cache",
        LiveRequest,
        "_planned",
        "if plan.opening is not None and not self._nobody_listens:",
        "if False:",
    ),
    Mutant(
        "a prefill does not tell the cache hit",
        LiveRequest,
        "_close",
        "if response is not None:",
        "if False:",
    ),
    # ---- bounds ----
    Mutant(
        "drains for ever",
        LiveRequest,
        "stop_for_client",
        "self.scope.deadline = trio.current_time() + self._drain_seconds",
        "pass",
    ),
    Mutant(
        "waits for the frames of a client that has left",
        LiveRequest,
        "stop_for_client",
        "self._wanted.cancel()",
        "pass",
    ),
    Mutant(
        "every chunk extends the drain",
        LiveRequest,
        "_relay",
        "plan.responses.observe(chunk)",
        "plan.responses.observe(chunk); self.scope.deadline = trio.current_time() + 1.0",
    ),
    Mutant(
        "waits for a stream that ignores its cancellation",
        LiveRequest,
        "_leave",
        "trio.move_on_after(constants.FEEDER_CLOSE_S)",
        "trio.move_on_after(60)",
    ),
    Mutant(
        "a cancelled façade leaves its request running",
        compat.facade,
        "_leave",
        "live.abandon()",
        "pass",
    ),
    Mutant(
        "a cancelled façade does not wait",
        compat.facade,
        "_leave",
        "await _settled(live.ended)",
        "pass",
    ),
    # ---- rest ----
    Mutant(
        "keeps flights",
        LiveRequests,
        "land",
        "if self._flights.get(flight.rid) is flight:",
        "if False:",
    ),
    Mutant(
        "keeps live requests",
        LiveRequests,
        "landed",
        "self._live.discard(request)",
        "pass",
    ),
    Mutant(
        "keeps the child states that SGLang leaves",
        LiveRequests,
        "clear_leftovers",
        "if plan.choices < 2:",
        "if True:",
    ),
    Mutant(
        "forgets feeders that resist",
        Feeders,
        "start",
        "task.add_done_callback(self._tasks.discard)",
        "self._tasks.discard(task)",
    ),
    Mutant(
        "leaves the tap in place",
        TapMixin,
        "_stream_one_response",
        "state.event = event",
        "pass",
    ),
    Mutant(
        "keeps the outcome's error",
        Outcome,
        "take",
        "error, self._error = self._error, None",
        "error = self._error",
    ),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Put the fault in for the length of the block. Raises if it no longer fits the source."""
    function: Any = inspect.getattr_static(mutant.owner, mutant.name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutant.old) != 1:
        raise LookupError(f"{mutant.what}: {mutant.old!r} is not once in {mutant.name}")
    source = source.replace(mutant.old, mutant.new)
    in_class = inspect.isclass(mutant.owner)
    if in_class:
        # A function that is compiled alone has no class to look up ``super()`` by.
        source = source.replace("super()", f"super({mutant.owner.__name__}, self)")
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<mutant: {mutant.what}>", "exec"), function.__globals__, namespace)
    mutated = namespace[function.__name__]
    code = function.__code__
    if in_class:
        setattr(mutant.owner, mutant.name, mutated)
    else:
        function.__code__ = mutated.__code__  # others have imported the function by name
    try:
        yield
    finally:
        if in_class:
            setattr(mutant.owner, mutant.name, function)
        else:
            function.__code__ = code
