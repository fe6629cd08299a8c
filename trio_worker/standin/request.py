# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""One request inside the stand-in scheduler, and where it ends by itself."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from trio_worker.standin.script import Fault, FaultKind
from trio_worker.standin.tokens import LETTERS, letter_at

FinishReason = dict[str, Any]

# SGLang's schedule_batch.INIT_INCREMENTAL_DETOKENIZATION_OFFSET: the detokenizer gets so many
# prompt tokens in front of the first generated one.
SURROUNDING_TOKENS = 5

_STRIKING = frozenset(
    {
        FaultKind.RETRACT,
        FaultKind.ERROR,
        FaultKind.DIE,
        FaultKind.HANG,
        FaultKind.STALL,
        FaultKind.BURST,
    }
)


def abort_reason(
    message: str = "Aborted", status: int | None = None, err_type: str | None = None
) -> FinishReason:
    """SGLang's FINISH_ABORT.to_json()."""
    return {"type": "abort", "message": message, "status_code": status, "err_type": err_type}


class Phase(Enum):
    """Where a request is. Everything but WAITING and DONE counts as running."""

    WAITING = auto()
    PREFILL = auto()
    RUNNING = auto()
    STALLED = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Ending:
    """After how many generated tokens a request ends, why, the last token if it is no letter."""

    length: int
    reason: FinishReason
    last_token: int | None = None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """What a request wants to know: top-k per token, some ids per token, the prompt from start."""

    top: int = 0
    token_ids: Sequence[int] | None = None
    start: int = -1


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """State of one request.

    produced counts the tokens generated before step base_step; a request in the roster is counted
    on by arithmetic and brought up to date when it leaves. turn is the step at which it has to be
    looked at, ticket changes with the phase and makes older timers void (see generation.py).
    """

    rid: str
    prompt_ids: Sequence[int]
    ending: Ending
    http_worker_ipc: str | None = None
    stream_interval: int = 1
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    logprobs: Logprobs | None = None
    embedding: Any = None
    is_embedding: bool = False
    time_stats: Any = None
    faults: tuple[Fault, ...] = ()

    phase: Phase = Phase.WAITING
    produced: int = 0
    base_step: int = 0
    turn: int = 0
    ticket: int = 0
    in_roster: bool = False
    sent_first: bool = False
    retractions: int = 0
    to_finish: FinishReason | None = None
    weight_events: list[Any] = field(default_factory=list)
    strikes: list[Fault] = field(default_factory=list)
    aborts_to_ignore: float = 0
    echo_ms: float = 0.0
    prefill_ms: float | None = None

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault.kind is FaultKind.IGNORE_ABORT:
                self.aborts_to_ignore = fault.times or float("inf")
            elif fault.kind is FaultKind.DELAY_ECHO:
                self.echo_ms = fault.ms
            elif fault.kind is FaultKind.SLOW_PREFILL:
                self.prefill_ms = fault.ms
            elif fault.kind in _STRIKING and 1 <= fault.at <= self.ending.length:
                self.strikes += [fault] * (fault.times if fault.kind is FaultKind.RETRACT else 1)
        self.strikes.sort(key=lambda fault: fault.at)

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def on_arrival(self) -> Fault | None:
        """The fault that strikes before the request is queued."""
        for fault in self.faults:
            if fault.kind in _STRIKING and fault.at == 0:
                return fault
        return None

    @property
    def next_stop(self) -> int:
        """Generated tokens at which something happens: a fault before the next one, or the end."""
        return self.strikes[0].at - 1 if self.strikes else self.ending.length

    def surrounding_ids(self) -> array[int]:
        return array("q", self.prompt_ids[-SURROUNDING_TOKENS:])


def natural_ending(
    *,
    prompt_ids: Sequence[int],
    max_new_tokens: int | None,
    room: int,
    alphabet: Sequence[int],
    min_new_tokens: int = 0,
    eos_every: int = 0,
    eos_id: int | None = None,
    ignore_eos: bool = False,
    stop_token_ids: Collection[int] = (),
    stop_strings: Sequence[str] = (),
) -> Ending:
    """Where a request ends if nobody stops it; pure.

    room: tokens that the context still holds. Like SGLang (Req.update_finish_state), a stop string
    beats a stop token, which beats the length.
    """
    cap = max(0, min(room if max_new_tokens is None else max_new_tokens, room))
    size = len(alphabet)
    first = letter_at(prompt_ids, len(prompt_ids), size)
    ending = Ending(cap, {"type": "length", "length": cap})

    for k in range(min(size, cap - min_new_tokens) if stop_token_ids else 0):
        length = min_new_tokens + k + 1
        token = alphabet[(first + length - 1) % size]
        if token in stop_token_ids:
            ending = Ending(length, {"type": "stop", "matched": token})
            break
    if eos_every and eos_id is not None and not ignore_eos:
        # The position of the k-th generated token is len(prompt) + k - 1.
        start = len(prompt_ids) + min_new_tokens
        length = min_new_tokens + 1 + (-start) % eos_every
        if length <= ending.length:
            ending = Ending(length, {"type": "stop", "matched": eos_id}, last_token=eos_id)
    if stop_strings and size == len(LETTERS):
        span = min(cap, min_new_tokens + size + max(len(text) for text in stop_strings))
        text = "".join(LETTERS[(first + k) % size] for k in range(span))
        for stop in stop_strings:
            found = text.find(stop, max(0, min_new_tokens - len(stop) + 1))
            length = found + len(stop)
            if stop and found >= 0 and length <= ending.length:
                ending = Ending(length, {"type": "stop", "matched": stop})
    return ending
