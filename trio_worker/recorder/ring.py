# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A bounded ring of events: plain values only, so that it keeps no request alive."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

DEFAULT_SIZE = 20_000
"""Events, hence the last two thousand requests or so: about 4 MB."""


class Event(NamedTuple):
    """One thing that happened."""

    time: float
    """Seconds of Trio's clock."""
    lane: int
    """Of which request, by number; 0: of the worker."""
    what: str
    """One of `trio_worker.recorder.events`."""
    detail: str | None


class Note(Protocol):
    """Records something of one lane."""

    def __call__(self, what: str, detail: str | None = None, /) -> None: ...


class Recorder:
    """One worker's. Written on the Trio thread only; may be read from any."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        """Trio. `size`: events that are kept; 0 keeps none."""
        self.size = size
        self.lanes = 0
        """Requests so far."""
        self._now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        # Once: an event has the same time in every dump, whatever becomes of the wall clock.
        self._epoch = time.time() - self._now()
        # Plain tuples: half as dear as named ones, and none of the garbage collector's business.
        self._ring: deque[tuple[float, int, str, str | None]] = deque(maxlen=size)
        self._add = self._ring.append

    def lane(self) -> Note:
        """Trio or asyncio. Where the events of one more request go."""
        self.lanes += 1
        return functools.partial(self._note, self.lanes)

    def note_worker(self, what: str, detail: str | None = None) -> None:
        """Trio or asyncio. Something happened to the worker itself."""
        self._note(0, what, detail)

    def _note(self, lane: int, what: str, detail: str | None = None) -> None:
        self._add((self._now(), lane, what, detail))

    def events(self) -> list[Event]:
        """Any thread. What is kept, oldest first."""
        while True:
            try:
                return [Event(*event) for event in list(self._ring)]
            except RuntimeError:  # written meanwhile, by the Trio thread
                continue

    def now(self) -> float:
        """Any thread. The clock of the events."""
        return self._now()

    def epoch(self) -> float:
        """Any thread. What to add to an event's time to get seconds since 1970."""
        return self._epoch
