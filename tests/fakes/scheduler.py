# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""SGLang's scheduler and detokenizer as one asyncio-flavoured object that runs on loop timers.

It owns no task, so that a test can count the asyncio tasks that are left. What it keeps to:

- An abort matches queued and running rids by *prefix*, and nothing else: a rid that was not
  dispatched is unknown, and the abort is gone (``Scheduler.abort_request``).
- A queued request is dropped and its ``AbortReq`` echoed to the tokenizer manager; a running one
  finishes the step it is in with one more output whose finish reason is an abort.
- Deltas: ``output_ids`` and ``output_strs`` carry what is new, token counts are cumulative.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang.srt.managers import io_struct

from .journal import Journal
from .script import (
    FINISH_ABORTED,
    FINISH_LENGTH,
    NEVER,
    EngineScript,
    Hold,
    Output,
    Retract,
    Step,
)

POOLED = Output(0.1, tokens=0, finish=FINISH_LENGTH)
"""The one step of a pooling request."""

FIRST_TOKEN = 100
"""Output token i of a request is FIRST_TOKEN * (1 + its choice) + i."""


def token_text(token: int) -> str:
    """The text of one token: unique, so that a lost or doubled one is seen."""
    return f"<{token}>"


class Plan:
    """What one submission does: its script, and how many of its choices are under way."""

    def __init__(self, script: EngineScript) -> None:
        self.script = script
        self.choices = 0
        self.refused_aborts = 0


class _Request:
    """One rid as the scheduler knows it."""

    def __init__(
        self,
        rid: str,
        prompt_tokens: int,
        choice: int,
        script: EngineScript,
        steps: Sequence[Step],
    ) -> None:
        self.rid = rid
        self.prompt_tokens = prompt_tokens
        self.script = script
        self.steps = list(steps)
        self.first_token = FIRST_TOKEN * (choice + 1)
        self.produced = 0
        self.running = False
        self.retractions = 0
        self.aborts_seen = 0
        self.ending = False
        self.timer: asyncio.TimerHandle | None = None
        self.embedding: list[float] | None = None
        """What a pooling request is answered with; None: it generates."""


class FakeScheduler:
    """Takes what the tokenizer manager dispatches, gives back outputs and echoes."""

    def __init__(
        self,
        journal: Journal,
        deliver: Callable[[Any], None],
        plan_of: Callable[[str], Plan],
        *,
        skip_tokenizer_init: bool,
    ) -> None:
        self._journal = journal
        self._deliver = deliver
        self._plan_of = plan_of
        self._skip_tokenizer_init = skip_tokenizer_init
        self._requests: dict[str, _Request] = {}
        self._paused: list[Callable[[], None]] | None = None

    @property
    def busy(self) -> dict[str, str]:
        """rid -> "queued" or "running" for every request that still costs the engine something."""
        return {
            rid: "running" if request.running else "queued"
            for rid, request in self._requests.items()
        }

    def only_rid(self) -> str:
        """The rid of the one request that the scheduler has."""
        (rid,) = self._requests
        return rid

    # ---- what the tokenizer manager sends ----

    def receive(self, message: Any) -> None:
        """asyncio. One message from the tokenizer manager's socket."""
        if isinstance(message, io_struct.TokenizedGenerateReqInput):
            self._admit(message)
        elif isinstance(message, io_struct.TokenizedEmbeddingReqInput):
            self._admit_pooling(message)
        elif isinstance(message, io_struct.BatchTokenizedEmbeddingReqInput):
            for one in message.batch:
                self._admit_pooling(one)
        elif isinstance(message, io_struct.BatchTokenizedGenerateReqInput):
            for one in message.batch:
                self._admit(one)
        elif isinstance(message, io_struct.AbortReq):
            self._abort(message)
        elif isinstance(message, io_struct.PauseGenerationReqInput):
            self._journal.record("scheduler", "paused")
            self._paused = []
        elif isinstance(message, io_struct.ContinueGenerationReqInput):
            self._journal.record("scheduler", "continued")
            held, self._paused = self._paused or [], None
            for fire in held:
                fire()
        else:
            raise AssertionError(f"the fake scheduler does not know {type(message).__name__}")

    def _admit(self, message: io_struct.TokenizedGenerateReqInput) -> None:
        rid = message.rid
        self._journal.record("scheduler", "dispatched", rid)
        plan = self._plan_of(rid)
        script = plan.script
        if message.sampling_params.max_new_tokens == 0:
            # SGLang's prefix warm-up of parallel sampling: prefill, one answer, no token.
            steps: Sequence[Step] = (Output(0.0, tokens=0, finish=FINISH_LENGTH),)
            choice, extra = 0, script.warm_up_delay - script.prefill_delay
        else:
            choice = plan.choices
            plan.choices += 1
            steps = script.outputs
            extra = script.choice_delays[choice] if choice < len(script.choice_delays) else 0.0
        request = _Request(rid, len(message.input_ids or ()), choice, script, steps)
        self._requests[rid] = request
        self._later(request, script.queue_delay, lambda: self._run(request, extra))

    def _admit_pooling(self, message: io_struct.TokenizedEmbeddingReqInput) -> None:
        rid = message.rid
        self._journal.record("scheduler", "dispatched", rid)
        script = self._plan_of(rid).script
        # One forward pass, one answer.
        steps = script.outputs if script.outputs == NEVER else (POOLED,)
        ids = list(message.input_ids or ())
        request = _Request(rid, len(ids), 0, script, steps)
        request.embedding = [float(sum(ids)), *map(float, ids)]
        self._requests[rid] = request
        self._later(request, script.queue_delay, lambda: self._run(request, 0.0))

    def _abort(self, message: io_struct.AbortReq) -> None:
        hits = [
            request
            for rid, request in self._requests.items()
            if message.abort_all or rid.startswith(message.rid)
        ]
        self._journal.record(
            "scheduler", "abort matched" if hits else "abort matches nothing", message.rid or None
        )
        for request in hits:
            request.aborts_seen += 1
            if request.aborts_seen <= request.script.ignored_aborts:
                self._journal.record("scheduler", "abort ignored", request.rid)
            elif not request.ending:
                request.ending = True
                if request.running:
                    self._later(
                        request, request.script.abort_latency, lambda r=request: self._cut(r)
                    )
                else:
                    self._later(
                        request, request.script.echo_latency, lambda r=request: self._echo(r)
                    )

    # ---- one request's life ----

    def _later(self, request: _Request, seconds: float, action: Callable[[], None]) -> None:
        if request.timer is not None:
            request.timer.cancel()
        loop = asyncio.get_running_loop()

        def fire() -> None:
            request.timer = None
            if self._paused is not None:
                self._paused.append(fire)
            elif request.rid in self._requests:
                action()

        if seconds:
            request.timer = loop.call_later(seconds, fire)
        else:
            fire()

    def _run(self, request: _Request, extra: float) -> None:
        request.running = True
        self._journal.record("scheduler", "running", request.rid)
        self._later(request, request.script.prefill_delay + extra, lambda: self._next(request))

    def _next(self, request: _Request) -> None:
        if request.ending or not request.steps or isinstance(request.steps[0], Hold):
            return
        step = request.steps[0]
        assert isinstance(step, Output | Retract)
        self._later(request, step.after, lambda: self._step(request))

    def _step(self, request: _Request) -> None:
        step = request.steps.pop(0)
        if isinstance(step, Retract):
            request.running = False
            request.retractions += 1
            self._emit(request, 0, None)
            if not request.ending:
                self._later(request, step.queued, lambda: self._run(request, 0.0))
            return
        assert isinstance(step, Output)
        for left in reversed(range(step.messages)):
            self._emit(request, step.tokens, step.finish if left == 0 else None)
        if request.rid in self._requests:
            self._next(request)

    def _cut(self, request: _Request) -> None:
        self._emit(request, request.script.abort_tokens, FINISH_ABORTED)

    def _echo(self, request: _Request) -> None:
        del self._requests[request.rid]
        self._journal.record("scheduler", "abort echoed", request.rid)
        self._deliver(io_struct.AbortReq(rid=request.rid))

    def emit_held(self, rid: str, output: Output) -> None:
        """asyncio. One output now, for a request that is at a `Hold`."""
        request = self._requests[rid]
        for left in reversed(range(output.messages)):
            self._emit(request, output.tokens, output.finish if left == 0 else None)

    def _emit(self, request: _Request, count: int, finish: Mapping[str, Any] | None) -> None:
        start = request.first_token + request.produced
        request.produced += count
        if finish is not None:
            del self._requests[request.rid]
            if request.timer is not None:
                request.timer.cancel()
            finish = dict(finish)
            if finish.get("type") == "length":
                finish["length"] = request.produced
        ids = list(range(start, start + count))
        self._journal.record(
            "scheduler", "output", request.rid, {"ids": ids, "finish": finish and finish["type"]}
        )
        if request.embedding is None:
            self._deliver(_output_message(request, ids, finish, self._skip_tokenizer_init))
        else:
            self._deliver(_pooled_message(request, finish))

    def stop(self) -> None:
        """asyncio. No timer fires after this."""
        for request in self._requests.values():
            if request.timer is not None:
                request.timer.cancel()
        self._requests.clear()


def _output_message(
    request: _Request, ids: list[int], finish: dict[str, Any] | None, skip_tokenizer_init: bool
) -> Any:
    common: dict[str, Any] = {
        "rids": [request.rid],
        "http_worker_ipcs": [None],
        "finished_reasons": [finish],
        "output_ids": [array("q", ids)],
        "prompt_tokens": [request.prompt_tokens],
        "completion_tokens": [request.produced],
        "reasoning_tokens": [0],
        "cached_tokens": [0],
        "retraction_counts": [request.retractions],
        "routed_experts": None,
        "indexer_topk": None,
        "output_hidden_states": None,
        "placeholder_tokens_idx": None,
        "placeholder_tokens_val": None,
    }
    for kind in ("token", "top", "token_ids"):
        for side in ("input", "output"):
            for part in ("val", "idx"):
                common[f"{side}_{kind}_logprobs_{part}"] = None
    common["output_token_entropy_val"] = None
    common["output_token_sampling_mask"] = None
    if skip_tokenizer_init:
        return io_struct.BatchTokenIDOutput(
            decoded_texts=[""],
            decode_ids=[array("q", ids)],
            read_offsets=[0],
            skip_special_tokens=[True],
            spaces_between_special_tokens=[True],
            no_stop_trim=[False],
            **common,
        )
    return io_struct.BatchStrOutput(output_strs=["".join(map(token_text, ids))], **common)


def _pooled_message(request: _Request, finish: dict[str, Any] | None) -> Any:
    return io_struct.BatchEmbeddingOutput(
        rids=[request.rid],
        http_worker_ipcs=[None],
        finished_reasons=[finish],
        embeddings=[request.embedding],
        prompt_tokens=[request.prompt_tokens],
        cached_tokens=[0],
        placeholder_tokens_idx=None,
        placeholder_tokens_val=None,
        retraction_counts=[0],
    )


def over_the_wire(message: Any) -> Any:
    """`message` as the other process would see it; SGLang's default wire format is pickle."""
    return pickle.loads(pickle.dumps(copy.copy(message), protocol=pickle.HIGHEST_PROTOCOL))
