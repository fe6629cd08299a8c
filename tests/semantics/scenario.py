# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One run, said beforehand: requests, what the engine does with them, who acts when.

Times are virtual seconds from the moment that the first request arrives at the handler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.fakes.multimodal import Embeddings, OtherWorker
from tests.fakes.script import EngineScript

Mode = Literal["tokens", "text", "native"]
MODES: tuple[Mode, ...] = ("tokens", "text", "native")
CALLER_RID = "caller-supplied-id"


@dataclass(frozen=True)
class Leave:
    """The consumer goes away by itself after so many outputs."""

    after: int
    how: Literal["aclose", "drop"] = "aclose"
    """aclose: ``async with aclosing``; drop: the last reference goes, as the runtime does it."""


@dataclass(frozen=True)
class Request:
    """What one client asks for, and what the engine does with it."""

    script: EngineScript = field(default_factory=EngineScript)
    mode: Mode = "tokens"
    n: int | None = None
    batch: int | None = None
    """Native only: so many prompts in one request."""
    session: bool = False
    """Native only: a request of a session, whose public rid is the engine's."""
    rid: str | None = CALLER_RID
    """Native only: the caller's rid."""
    trace_id: str | None = None
    arrives: float = 0.0
    leave: Leave | None = None
    stops_reading_after: int | None = None
    """The consumer takes so many outputs and then takes no more until it "reads on"."""
    first_token_error: BaseException | None = None
    """What the context raises when the handler reports the first token."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More keys of the request."""


Verb = Literal[
    "stop",
    "kill",
    "shutdown",
    "lose",
    "cancel owner",
    "cleanup",
    "read on",
    "pause engine",
    "continue engine",
    "emit",
    "break stream",
    "call",
]


@dataclass(frozen=True)
class Action:
    """`verb` at a time, or at the moment of an event in the journal."""

    verb: Verb
    at: float | None = None
    on: tuple[str, int] | None = None
    """("output", 2): synchronously, when the second "output" is recorded."""
    request: int = 0
    argument: Any = None
    hops: int = 0
    """Then so many passes of the event loop later, to move through the ticks of one instant."""


def stop(at: float | None = None, **more: Any) -> Action:
    """The client stops its request."""
    return Action("stop", at, **more)


def kill(at: float | None = None, **more: Any) -> Action:
    """The client's request is killed."""
    return Action("kill", at, **more)


def shutdown(at: float | None = None, **more: Any) -> Action:
    """The worker's shutdown has come to its migrate phase."""
    return Action("shutdown", at, **more)


def lose(at: float | None = None, **more: Any) -> Action:
    """The consumer of the response stream is gone, without a word."""
    return Action("lose", at, **more)


def break_stream(error: Exception | None, at: float | None = None, **more: Any) -> Action:
    """The streams of breakable scripts raise `error`; None: they end."""
    return Action("break stream", at, argument=error, **more)


def cancel_owner(at: float | None = None, **more: Any) -> Action:
    """Who awaits the handler is cancelled."""
    return Action("cancel owner", at, **more)


@dataclass(frozen=True)
class Scenario:
    requests: Sequence[Request] = (Request(),)
    actions: Sequence[Action] = ()
    role: Literal["decode", "prefill", "dllm", "multimodal", "multimodal prefill"] = "decode"
    disaggregated: bool = False
    """Decode and multimodal only: with a prefill worker before it."""
    embeddings: Embeddings = field(default_factory=Embeddings)
    """Multimodal only: how they arrive."""
    prefill: OtherWorker = field(default_factory=OtherWorker)
    """Multimodal and disaggregated only: the worker before it."""
    server_args: Mapping[str, Any] = field(default_factory=dict)
    registry: Literal["mapping", "list", "no manager"] = "mapping"
    """What the engine shows as ``tokenizer_manager.rid_to_state``."""
    shutdown_event: bool = True
    """The incumbent only: whether its handler is told of shutdowns at all (rule 11)."""
    upload: Any = None
    """Stands in for the metadata uploader (``dynamo.common.metadata_upload``)."""
    arm: Literal["production", "pull"] = "production"
    """Ours only: pull is what the canary and in-process calls use (rule 116)."""
    horizon: float = 120.0
    """A request that has not ended after so many seconds hangs."""
    settle: float = 6.0
    """Seconds that the worker lives on after the last request ended."""


def one(script: EngineScript | None = None, *actions: Action, **options: Any) -> Scenario:
    """A scenario of one request. Options of `Request` and of `Scenario` may be mixed."""
    request_fields = Request.__dataclass_fields__
    for_request = {key: options.pop(key) for key in tuple(options) if key in request_fields}
    request = Request(script=script if script is not None else EngineScript(), **for_request)
    return Scenario(requests=(request,), actions=actions, **options)
