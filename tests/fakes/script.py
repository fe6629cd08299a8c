# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the fake engine does with one request, said beforehand. All times are virtual seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FINISH_LENGTH: Mapping[str, Any] = {"type": "length", "length": 0}
FINISH_STOP: Mapping[str, Any] = {"type": "stop", "matched": 2}
FINISH_ABORTED: Mapping[str, Any] = {
    "type": "abort",
    "message": "Aborted",
    "status_code": None,
    "err_type": None,
}
"""What SGLang's scheduler says of a running request that was aborted (``FINISH_ABORT``)."""


def finish_error(status_code: int | None, err_type: str | None, message: str) -> dict[str, Any]:
    """An abort that carries an error; a non-null status or type makes the handler raise."""
    return {"type": "abort", "message": message, "status_code": status_code, "err_type": err_type}


@dataclass(frozen=True)
class Output:
    """One output of the scheduler for one request."""

    after: float = 0.1
    """Seconds since the previous output (the first: since prefill ended)."""
    tokens: int = 1
    finish: Mapping[str, Any] | None = None
    messages: int = 1
    """As so many messages in one tick, each with `tokens` tokens."""


@dataclass(frozen=True)
class Retract:
    """The request loses its KV: an empty chunk, then back to the queue with its tokens."""

    after: float = 0.1
    queued: float = 1.0


@dataclass(frozen=True)
class Hold:
    """Nothing more until the test calls ``FakeScheduler.emit_held``."""


Step = Output | Retract | Hold


def tokens(
    count: int, *, every: float = 0.1, finish: Mapping[str, Any] | None = FINISH_LENGTH
) -> tuple[Step, ...]:
    """`count` outputs of one token, the last of them with `finish`; None: it never ends."""
    steps: list[Step] = [Output(every) for _ in range(count)]
    if finish is None:
        return (*steps, Hold())
    return (*steps[:-1], Output(every, finish=finish))


NEVER: tuple[Step, ...] = (Hold(),)
"""No output at all, until an abort."""


@dataclass(frozen=True)
class EngineScript:
    """One request's life in the engine."""

    registration_delay: float = 0.0
    """Between the first poll of the stream and ``rid_to_state[rid]``."""
    registration_error: Exception | None = None
    tokenize_delay: float = 0.0
    """Between registration and dispatch."""
    dispatch_error: Exception | None = None
    queue_delay: float = 0.0
    """Between dispatch and running: an abort that arrives then is echoed (rule 119)."""
    prefill_delay: float = 0.0
    outputs: Sequence[Step] = field(default_factory=lambda: tokens(5))
    warm_up_delay: float = 0.0
    """Parallel sampling: how long SGLang's prefix warm-up prefills before the choices start."""
    choice_delays: Sequence[float] = ()
    """Parallel sampling: more prefill delay for the 1st, 2nd, … choice that is dispatched."""

    abort_latency: float = 0.02
    """From the arrival of an abort to the last output of a running request."""
    abort_tokens: int = 1
    """Tokens in that output; SGLang finishes the step that it is in."""
    ignored_aborts: float = 0
    """How many matching aborts have no effect; ``math.inf``: all."""
    echo_latency: float = 0.01
    """From the arrival of an abort to the echo of a queued request."""

    abort_send_errors: float = 0
    """How many abort messages the socket refuses with a RuntimeError before it takes one."""

    breakable: bool = False
    """The stream can be broken by ``FakeTokenizerManager.break_streams``."""
    cancel_error: Exception | None = None
    """What the stream raises when it is cancelled."""
    resists_cancel_for: float | None = None
    """A cancelled stream swallows the cancel, goes on for so many seconds, then ends."""
    legacy_time_stats: bool = False
    """The state's ``time_stats`` has no ``api_server_dispatch_finish_time`` (rule 26)."""
    dispatch_not_stamped: bool = False
    """``api_server_dispatch_finish_time`` stays 0.0, as when SGLang's send is late (rule 36)."""
    registers_as: str | None = None
    """The engine replaces the submitted rid by this one (rule 22)."""
