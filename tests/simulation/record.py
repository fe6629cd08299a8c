# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What a run leaves for its judges: plain data, no exceptions, no live objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.fakes.journal import Journal

from .case import Case


@dataclass(frozen=True)
class Moment:
    """A place in the journal: what was recorded before it has a smaller `order`."""

    order: int
    time: float


@dataclass(frozen=True)
class Got:
    """One response that reached the consumer."""

    moment: Moment
    index: int
    """The choice, as the response says."""
    ids: tuple[int, ...]
    finish: str | None
    after_stop: bool
    """Sent from the loop (not carried) although the context was stopped already."""
    kind: Literal["tokens", "bootstrap", "cache hit"] = "tokens"
    """Prefill answers with the other two (rule 83)."""


@dataclass
class RequestRecord:
    arrived: Moment | None = None
    stopped: Moment | None = None
    """The context was stopped, by whomever."""
    owner_cancelled: Moment | None = None
    left: Moment | None = None
    """Pull: the consumer went away by itself."""
    landed: Moment | None = None
    """Its Trio task has put the outcome."""
    ended: Moment | None = None
    """The façade's generator has ended."""
    error: str | None = None
    """Class name of what the façade raised."""
    error_text: str = ""
    group: bool = False
    """An exception group left, or Trio's own ``Cancelled``."""
    got: list[Got] = field(default_factory=list)
    first_token_notices: int = 0
    uploads: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    most_responses: int = 0
    """Responses that waited for the consumer, at most."""
    most_chunks: int = 0
    """Chunks that waited for the reader, at most, in its channel or with the tap."""
    trouble_seen: bool = False
    """A scripted error of the engine, the upload or the planning was raised."""


@dataclass
class Record:
    case: Case
    journal: Journal
    requests: list[RequestRecord]
    owner_of: dict[str, int] = field(default_factory=dict)
    """rid -> index of its request."""
    shutdown: Moment | None = None
    refusing: Moment | None = None
    """The serving nursery was cancelled."""
    joined: Moment | None = None
    """The serving nursery was empty."""
    last_call: Moment | None = None
    broken: bool = False
    """Breakable streams were broken."""
    left_over: dict[str, Any] = field(default_factory=dict)
    """What was not back in its resting shape, once the run had settled."""
    feeders_left: int = 0
    feeders_left_behind: int = 0
    log: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, level, message)."""
    loop_errors: list[str] = field(default_factory=list)
    unraisable: list[str] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)
    crash: str = ""
    """An error that left the worker's own tasks."""
