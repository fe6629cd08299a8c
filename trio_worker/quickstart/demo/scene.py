# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What there is to see: two workers, a text and who served which part of it, a stop. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_PLAN: Final = re.compile(
    r"(?:Received signal|Shutdown: .* in all|Grace period|draining: |Shutdown (?:phase|took)).*"
)
"""The lines of a worker's log that tell of its stop."""
_PHASE: Final = re.compile(r"Shutdown phase (\d) \((\w+)\) took ([\d.]+) s: (.*)")

MIGRATE: Final = 3
"""The phase at whose end a worker serves nobody any more."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the shutdown plan that is over."""

    number: int
    name: str
    seconds: float
    ended: str


def plan_lines(output: str) -> list[str]:
    """What a worker has logged of its stop, without times and colours."""
    lines = (_PLAN.search(line) for line in _ESCAPES.sub("", output).splitlines())
    return [line[0] for line in lines if line is not None]


def phase_of(line: str) -> Phase | None:
    """The phase whose end a line tells; None for any other."""
    match = _PHASE.fullmatch(line)
    return match and Phase(int(match[1]), match[2], float(match[3]), match[4])


def has_migrated(output: str) -> bool:
    """Whether the worker that logged `output` has handed its requests on."""
    phases = (phase_of(line) for line in plan_lines(output))
    return any(phase is not None and phase.number == MIGRATE for phase in phases)


@dataclass(slots=True)
class Seen:
    """One worker."""

    name: str
    pid: int
    doing: str = "starting"
    requests: int = 0
    """That it serves now."""


@dataclass(slots=True)
class Proof:
    """Something that had to be true at the end."""

    claim: str
    holds: bool


@dataclass(slots=True)
class Scene:
    """Everything that a screen shows."""

    workers: list[Seen] = field(default_factory=list)
    parts: list[tuple[int, str]] = field(default_factory=list)
    """The text so far, cut where another worker took over: (index of the worker, text)."""
    stopped: int | None = None
    """Index of the worker that was told to stop."""
    stopped_at: int | None = None
    """Length of the text when it was."""
    plan: list[str] = field(default_factory=list)
    """What it has logged of its stop."""
    proofs: list[Proof] = field(default_factory=list)

    def add_text(self, worker: int, text: str) -> None:
        """`text` came from `worker`."""
        if self.parts and self.parts[-1][0] == worker:
            self.parts[-1] = (worker, self.parts[-1][1] + text)
        else:
            self.parts.append((worker, text))

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for _, text in self.parts)

    @property
    def proven(self) -> bool:
        """Whether there are proofs and all of them hold."""
        return bool(self.proofs) and all(proof.holds for proof in self.proofs)
