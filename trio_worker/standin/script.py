# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The script of a stand-in scheduler: one string, parsed into one frozen object.

    step_ms=8,tokens_per_step=1,prefill_ms=20,max_running=64,fault=die:at=100:rate=0.01

Settings are separated by commas, the parameters of a fault by colons, so values contain neither;
``fault=`` may come many times. Durations other than step_ms may be ``never``. The empty string is
the script with every default.

A fault with ``at=k`` strikes in the place of the k-th generated token: k - 1 tokens were sent, the
k-th is not. ``at=0`` is the arrival of the request, before it is queued. A fault whose k lies
behind the request's end does not strike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

FOREVER = float("inf")


class ScriptError(ValueError):
    """The script can't be understood; the message names the part and what would be right."""


class FaultKind(StrEnum):
    """What goes wrong. In brackets, the process that has to act."""

    IGNORE_ABORT = "ignore_abort"  # scheduler
    DELAY_ECHO = "delay_echo"  # scheduler
    SLOW_PREFILL = "slow_prefill"  # scheduler
    RETRACT = "retract"  # scheduler
    ERROR = "error"  # scheduler
    DIE = "die"  # scheduler
    HANG = "hang"  # scheduler: the whole process
    STALL = "stall"  # scheduler: this request only
    BURST = "burst"  # scheduler: everybody's next steps in one tick
    DELAY_REGISTER = "delay_register"  # worker, see tokenizer.py
    DELAY_DISPATCH = "delay_dispatch"  # worker, see tokenizer.py


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault. Only the parameters of its kind have a meaning.

    at: token number (1-based) in whose place it strikes; 0 is the arrival.
    ms: how long, FOREVER if it never ends.
    times: how often (retract), how many aborts (ignore_abort; 0: all of them).
    status, err_type, message: of an error's finish reason; status None as SGLang's own aborts have.
    how: "exit" (os._exit with code) or "kill" (SIGKILL to itself).
    size: steps in one tick (burst).
    rate: share of the requests that get it, drawn from the script's seed in order of arrival.
    prompt: only requests with this text in their prompt. max_tokens: only requests that ask for it.
    """

    kind: FaultKind
    at: int = 1
    ms: float = 0.0
    times: int = 1
    status: int | None = None
    err_type: str | None = None
    message: str = "scripted fault"
    how: str = "exit"
    code: int = 1
    size: int = 1
    rate: float = 1.0
    prompt: str = ""
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StandInScript:
    """What the stand-in does. Frozen and picklable: it travels to the scheduler process.

    step_ms: time between two steps; 0 runs as fast as it can.
    tokens_per_step: tokens that each running request gets in a step.
    prefill_ms: from admission to the step that may carry the first token.
    max_running: requests that run at once, the others wait; None: the server's own limit.
    queue_limit: requests that may wait; the next one is refused as SGLang does (503, "The request
    queue is full."); None: the server's --max-queued-requests.
    burst: steps that are done back to back in one tick, which is then burst x step_ms long.
    eos_every: absolute positions that are multiples of this carry the end-of-sequence token;
    0: none.
    capacity: KV tokens that the scheduler claims to have.
    dims: length of embeddings; 0: the model's hidden size.
    load, load_ms: start-up ends after load_ms as "ok", "exit" (the process leaves) or "raise".
    shutdown_ms: between ShutdownReq and exit; FOREVER ignores it.
    log: path of the event log; environment TRIO_WORKER_STAND_IN_LOG if empty.
    """

    step_ms: float = 8.0
    tokens_per_step: int = 1
    prefill_ms: float = 0.0
    max_running: int | None = None
    queue_limit: int | None = None
    burst: int = 1
    eos_every: int = 0
    capacity: int = 4_000_000
    dims: int = 0
    seed: int = 0
    load: str = "ok"
    load_ms: float = 0.0
    shutdown_ms: float = 0.0
    log: str = ""
    faults: tuple[Fault, ...] = ()


def _count(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise ValueError(f"at least {minimum}")
        return value

    return parse


def _finite(text: str) -> float:
    value = float(text)
    if not 0 <= value < FOREVER:
        raise ValueError("milliseconds, 0 or more")
    return value


def _duration(text: str) -> float:
    return FOREVER if text == "never" else _finite(text)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("between 0 and 1")
    return value


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(" or ".join(allowed))
        return text

    return parse


def _status(text: str) -> int | None:
    return None if text == "none" else _count(100)(text)


_SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "step_ms": _finite,
    "tokens_per_step": _count(1),
    "prefill_ms": _duration,
    "max_running": _count(1),
    "queue_limit": _count(0),
    "burst": _count(1),
    "eos_every": _count(0),
    "capacity": _count(1),
    "dims": _count(0),
    "seed": int,
    "load": _one_of("ok", "exit", "raise"),
    "load_ms": _duration,
    "shutdown_ms": _duration,
    "log": str,
}

_SELECTORS: Mapping[str, Callable[[str], Any]] = {
    "rate": _share,
    "prompt": str,
    "max_tokens": _count(0),
}

_PARAMETERS: Mapping[FaultKind, Mapping[str, Callable[[str], Any]]] = {
    FaultKind.IGNORE_ABORT: {"times": _count(0)},
    FaultKind.DELAY_ECHO: {"ms": _duration},
    FaultKind.SLOW_PREFILL: {"ms": _duration},
    FaultKind.RETRACT: {"at": _count(1), "times": _count(1), "ms": _duration},
    FaultKind.ERROR: {"at": _count(0), "status": _status, "type": str, "message": str},
    FaultKind.DIE: {"at": _count(0), "how": _one_of("exit", "kill"), "code": _count(0)},
    FaultKind.HANG: {"at": _count(0), "ms": _duration},
    FaultKind.STALL: {"at": _count(1), "ms": _duration},
    FaultKind.BURST: {"at": _count(1), "size": _count(1)},
    FaultKind.DELAY_REGISTER: {"ms": _duration},
    FaultKind.DELAY_DISPATCH: {"ms": _duration},
}

_DEFAULTS: Mapping[FaultKind, Mapping[str, Any]] = {
    FaultKind.IGNORE_ABORT: {"times": 0},
    FaultKind.DELAY_ECHO: {"ms": 1000.0},
    FaultKind.SLOW_PREFILL: {"ms": 1000.0},
    FaultKind.HANG: {"ms": FOREVER},
    FaultKind.STALL: {"ms": FOREVER},
    FaultKind.BURST: {"size": 50},
    FaultKind.DELAY_REGISTER: {"ms": 100.0},
    FaultKind.DELAY_DISPATCH: {"ms": 100.0},
}


def _parse_value(where: str, name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ScriptError(f"{where}: bad value {text!r} for {name} ({error})") from None


def _parse_fault(text: str) -> Fault:
    kind_name, *parts = text.split(":")
    try:
        kind = FaultKind(kind_name)
    except ValueError:
        known = ", ".join(k.value for k in FaultKind)
        raise ScriptError(f"fault {text!r}: unknown kind {kind_name!r}; known: {known}") from None
    known_here = {**_PARAMETERS[kind], **_SELECTORS}
    values: dict[str, Any] = dict(_DEFAULTS.get(kind, {}))
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in known_here:
            raise ScriptError(
                f"fault {text!r}: unknown parameter {part!r}; {kind.value} takes "
                + ", ".join(known_here)
            )
        field = "err_type" if name == "type" else name
        values[field] = _parse_value(f"fault {text!r}", name, value, known_here[name])
    return Fault(kind=kind, **values)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Faults of one request: ``die:at=3,retract:at=2``; a leading ``fault=`` is allowed in each.

    Raises ScriptError.
    """
    parts = (part.strip() for part in text.split(","))
    return tuple(_parse_fault(part.removeprefix("fault=")) for part in parts if part)


def parse_script(text: str) -> StandInScript:
    """Parse a whole script; pure. Raises ScriptError, whose message names the faulty part."""
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ScriptError(f"{part!r} is not of the form name=value")
        if name == "fault":
            faults.append(_parse_fault(value))
        elif name not in _SETTINGS:
            raise ScriptError(f"unknown setting {name!r}; known: {', '.join(_SETTINGS)}, fault")
        elif name in values:
            raise ScriptError(f"setting {name!r} is given twice")
        else:
            values[name] = _parse_value("script", name, value, _SETTINGS[name])
    return replace(StandInScript(), **values, faults=tuple(faults))
