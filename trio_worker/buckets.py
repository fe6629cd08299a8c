# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A histogram that costs one addition an observation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Buckets:
    """Written by one thread, read by any."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper ones, ascending; a last bucket without one is added."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value` into the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Prometheus' form: for each bound, as text, how many values were not above it."""
        found, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
