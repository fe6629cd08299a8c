# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One run, said beforehand. All times are virtual seconds from the start of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.fakes.script import EngineScript

Mode = Literal["tokens", "text", "native"]
Arm = Literal["push", "pull"]
Role = Literal["decode", "prefill"]
Verb = Literal[
    "stop",
    "kill",
    "lose",
    "cancel owner",
    "pause engine",
    "break streams",
    "abort all",
    "shutdown",
]
Flavour = Literal["direct", "asyncio", "trio"]

LAST_CALL = 40.0
"""Seconds after which clients give up: streams without an end are stopped, stalls are over."""

PATIENCE = 5.0
"""Seconds after `LAST_CALL` at which a request that has not ended is said to hang."""

SETTLE = 45.0
"""Seconds that the worker lives on, more than any wait of its own (REGISTRATION_WAIT_S)."""


class UploadFailed(Exception):
    """Stands for the metadata uploader's errors."""


class PlanningFailed(ValueError):
    """Stands for what the incumbent's request building raises."""


@dataclass(frozen=True)
class Upload:
    """The metadata of this request goes elsewhere (rule 88)."""

    seconds: float = 0.0
    fails: bool = False


@dataclass(frozen=True)
class Consumer:
    """How the client takes what it is sent."""

    every: float = 0.0
    """Seconds for each response; 0: at once."""
    stalls_after: int | None = None
    """Takes so many and then none until `stalls_until`."""
    stalls_until: float = 0.0
    depth: int = 128
    """Push: frames that the runtime queues before ``send`` blocks its thread."""
    leaves_after: int | None = None
    """Pull: goes away by itself after so many responses."""
    leaves_how: Literal["aclose", "drop"] = "aclose"


@dataclass(frozen=True)
class Request:
    script: EngineScript
    mode: Mode = "tokens"
    n: int | None = None
    batch: int | None = None
    session: bool = False
    arm: Arm = "push"
    arrives: float = 0.0
    consumer: Consumer = field(default_factory=Consumer)
    planning_seconds: float = 0.0
    planning_fails: bool = False
    upload: Upload | None = None

    @property
    def choices(self) -> int:
        """Streams that the client gets."""
        return (self.n or 1) * (self.batch or 1)

    @property
    def by_response_id(self) -> bool:
        """Rules 2-5: its abort is not ordered by the submitted rid."""
        return (self.n or 1) > 1 or self.batch is not None or self.session


@dataclass(frozen=True)
class Act:
    """Somebody does something, at a time or at an event; a shutdown at whichever is first."""

    verb: Verb
    request: int = 0
    at: float | None = None
    on: tuple[str, int] | None = None
    """("output", 2): when the second "output" of `request` is recorded, within that very call."""
    flavour: Flavour = "asyncio"
    """In place, in a callback of the bridge's loop, or in a Trio task …"""
    hops: int = 0
    """… so many callbacks or checkpoints later."""
    seconds: float = 0.0
    """Length of a pause of the engine."""


@dataclass(frozen=True)
class Case:
    seed: int
    requests: tuple[Request, ...]
    acts: tuple[Act, ...] = ()
    role: Role = "decode"
    crash: bool = False
    """The shutdown cancels the serving nursery without telling the requests (rule 111)."""
    tap: bool = True
    tapped_manager: bool = True
    """The hook for the tap is there; without it the feeder reads SGLang's own streams."""
    order_is_proven: bool = True
    skip_tokenizer_init: bool = False
    merge_at: int = 64
    backlog_frames: int = 32
    in_place_frames: int = 64
    batch_callbacks: int = 256
    """Callbacks of the bridge's loop between two Trio checkpoints."""
    pick_up: float = 0.0
    """Seconds until a carrier takes up a request's frames."""

    @property
    def text(self) -> bool:
        """The handler runs with ``--use-sglang-tokenizer``."""
        return self.requests[0].mode == "text"
