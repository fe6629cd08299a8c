# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the plan knows before it starts: reasons, phases, which reason takes which, how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from dynamo.common.utils.graceful_shutdown import get_grace_period_seconds


class ExitStatus(IntEnum):
    """How the process ends. The worst one stays: a failure never becomes 0 by a later signal."""

    ASKED = 0
    """Asked to stop, also when the grace ran out or a second signal hurried the plan."""
    FAILED = 1
    """Start-up, registration, engine or lease failed, or a phase of the plan did."""
    USAGE = 2
    """Bad arguments. Never in a plan."""
    FORCED = 70
    """The engine or its children were not gone in time (or: third signal, last resort)."""


class StopReason(Enum):
    """Why the worker stops. The first one fixes the path, later ones can only worsen the status."""

    SIGNAL = "asked to stop"
    ENGINE_DEAD = "the engine is dead"
    LEASE_LOST = "the lease is lost"
    STARTUP_FAILED = "start-up failed"
    STARTUP_STOPPED = "asked to stop during start-up"
    SNAPSHOT_TAKEN = "the snapshot is taken"
    GROUP_ENDED = "the schedulers of this node were told to exit"
    CHILD_DIED = "a gateway child died"
    INTERNAL_ERROR = "the worker failed"


class Phase(Enum):
    """The steps of DESIGN §6 by number and name; logs and counters use both."""

    NOTICE = (0, "notice")
    WITHDRAW = (1, "withdraw")
    DRAIN = (2, "drain")
    GROUP = (2, "group")
    CHILDREN = (2, "children")
    MIGRATE = (3, "migrate")
    STOP = (4, "stop")
    ENGINE = (5, "engine")
    DEFERRED = (6, "deferred")
    EXIT = (7, "exit")

    @property
    def number(self) -> int:
        """Place in the plan. A follower waits for its group, a gateway for its children, where
        others drain."""
        return self.value[0]

    @property
    def label(self) -> str:
        """Name in logs and counters."""
        return self.value[1]


Path = tuple[Phase, ...]

_FROM_ENGINE: Final[Path] = (Phase.ENGINE, Phase.DEFERRED, Phase.EXIT)
_FROM_STOP: Final[Path] = (Phase.STOP, *_FROM_ENGINE)

PATHS: Final[dict[StopReason, Path]] = {
    StopReason.SIGNAL: (Phase.WITHDRAW, Phase.DRAIN, Phase.MIGRATE, *_FROM_STOP),
    # Withdrawn and migrated at the same time: nobody can be served while one waits.
    StopReason.ENGINE_DEAD: (Phase.WITHDRAW, Phase.MIGRATE, *_FROM_STOP),
    # What was registered went with the lease: nothing is left to withdraw.
    StopReason.LEASE_LOST: (Phase.MIGRATE, *_FROM_STOP),
    StopReason.STARTUP_FAILED: _FROM_STOP,
    # The engine is still in its constructor, which nobody waits for: leaving kills its children.
    StopReason.STARTUP_STOPPED: (Phase.EXIT,),
    # As during a load: nothing has been registered, and the image is taken.
    StopReason.SNAPSHOT_TAKEN: (Phase.EXIT,),
    StopReason.GROUP_ENDED: _FROM_ENGINE,
    StopReason.CHILD_DIED: _FROM_STOP,
    # A defect of ours: requests may still be whole, so they move, but none is waited for.
    StopReason.INTERNAL_ERROR: (Phase.WITHDRAW, Phase.MIGRATE, *_FROM_STOP),
}
"""Which phases a reason takes (the second table of DESIGN §6)."""

FOLLOWER_PATH: Final[Path] = (Phase.GROUP, *_FROM_ENGINE)
"""Asked to stop, on a node that does not lead: leaving before rank 0 would hang the group."""


GATEWAY_PATH: Final[Path] = (Phase.CHILDREN, *_FROM_STOP)
"""Any reason, once a gateway has children: they serve, so their way out comes first."""

ASKED_REASONS: Final = frozenset(
    {
        StopReason.SIGNAL,
        StopReason.STARTUP_STOPPED,
        StopReason.SNAPSHOT_TAKEN,
        StopReason.GROUP_ENDED,
    }
)
"""Reasons that are no failure."""


def path_of(reason: StopReason, *, leads: bool, has_children: bool = False) -> Path:
    """The phases that `reason` takes.

    `leads`: the node leads its group; `has_children`: it is a gateway whose children were started.
    """
    if has_children:
        return GATEWAY_PATH
    if reason is StopReason.SIGNAL and not leads:
        return FOLLOWER_PATH
    return PATHS[reason]


CHILD_MARGIN_S: Final = 4.0
"""Seconds from a gateway child's total deadline until it is killed: its own last resort."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds: the most that each phase may take, and all of them together.

    Where `total` is too short for every bound, a phase is cut so that `reserve` is left for each
    later one; where it is too short even for the reserves, all get their share of what is left.
    """

    total: float = 30.0
    """From the stop to the exit (``--shutdown-timeout``)."""
    grace: float = field(default_factory=get_grace_period_seconds)
    """The drain (``DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS``, parsed by Dynamo); 0: none."""
    withdraw: float = 2.0
    migrate: float = 1.5
    """Rule 36 gives an ordered abort 1 s; the rest is for the request to leave."""
    stop: float = 2.0
    services: float = 1.0
    """Part of the engine phase, before the engine itself."""
    engine: float = 17.0
    """15 s for schedulers that release their memory, then SIGKILL and reaping."""
    deferred: float = 1.0
    exit: float = 1.0

    def of(self, phase: Phase) -> float:
        """The most that `phase` may take, in seconds."""
        return {
            Phase.NOTICE: 0.0,
            Phase.WITHDRAW: self.withdraw,
            Phase.DRAIN: self.grace,
            Phase.GROUP: self.total,
            Phase.CHILDREN: self.total,
            Phase.MIGRATE: self.migrate,
            Phase.STOP: self.stop,
            Phase.ENGINE: self.engine,
            Phase.DEFERRED: self.deferred,
            Phase.EXIT: self.exit,
        }[phase]

    def reserve(self, phase: Phase) -> float:
        """What earlier phases leave for `phase`, in seconds; 0 for those that only wait."""
        least = {
            Phase.WITHDRAW: 0.5,
            Phase.CHILDREN: 5.0,
            Phase.MIGRATE: 1.5,
            Phase.STOP: 1.0,
            Phase.ENGINE: 5.0,
            Phase.DEFERRED: 0.5,
            Phase.EXIT: 0.5,
        }
        return min(self.of(phase), least.get(phase, 0.0))

    def of_children(self) -> float:
        """The total of each gateway child, so that it is gone by itself before it is killed."""
        limit = self.limit(Phase.CHILDREN, GATEWAY_PATH[1:], self.total)
        return max(limit - CHILD_MARGIN_S, limit / 2)

    def limit(self, phase: Phase, later: Iterable[Phase], left: float) -> float:
        """Seconds that `phase` gets when `left` are left for it and the `later` ones."""
        own = self.reserve(phase)
        others = sum(map(self.reserve, later))
        share = left * own / (own + others) if own else 0.0
        return max(0.0, min(self.of(phase), max(left - others, share)))
