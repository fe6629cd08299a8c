# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""When the next step is due.

Steps keep a fixed rhythm, so a late one is made up for by the following ones coming on time. Who is
later than CATCH_UP_S skips what was missed and counts it: a machine that is too slow gets fewer
tokens, not a burst and not a queue of steps. The sockets can't say how far the receivers are
behind (SGLang sets no high-water mark on either side), so what bounds a receiver's backlog is what
its requests asked for; a closed-loop load keeps that small.
"""

CATCH_UP_S = 0.1


class Pace:
    """Rhythm of ticks of interval_s seconds. Times are of one monotonic clock, given in."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.skipped = 0
        self._next: float | None = None

    def rest(self) -> None:
        """There is nothing to do; the rhythm begins anew with the next start()."""
        self._next = None

    def start(self, now: float) -> None:
        """There is something to do: the first tick is one interval from now, unless running."""
        if self._next is None:
            self._next = now + self.interval_s

    def wait(self, now: float) -> float | None:
        """Seconds until the next tick, 0 if it is due; None at rest."""
        return None if self._next is None else max(0.0, self._next - now)

    def ticked(self, now: float) -> None:
        """A tick was done. Call only while running."""
        assert self._next is not None
        self._next += self.interval_s
        late = now - self._next
        if late > CATCH_UP_S:
            self.skipped += int(late / self.interval_s) if self.interval_s else 0
            self._next = now + self.interval_s
