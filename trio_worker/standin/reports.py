# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Load that the scheduler publishes by itself: KvMetrics and load snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trio_worker.standin.generation import Generation

# Scheduler's default decode_log_interval: decode statistics come every so many steps.
METRICS_STEPS = 40
SNAPSHOT_S = 0.1

Publish = Callable[[dict[str, Any]], None]


class Reports:
    """When to publish, and what.

    KvMetrics go out as SGLang sends them: with the step after an arrival, every METRICS_STEPS
    steps, never when idle. A load snapshot is written at most every SNAPSHOT_S seconds, and
    whenever idleness begins. metrics and snapshot get the fields of ``KvMetrics`` and
    ``LoadSnapshot``; None where SGLang would publish nothing.
    """

    def __init__(
        self,
        generation: Generation,
        *,
        capacity: int,
        dp_rank: int,
        metrics: Publish | None,
        snapshot: Publish | None,
    ) -> None:
        self._generation = generation
        self._capacity = capacity
        self._dp_rank = dp_rank
        self._metrics = metrics
        self._snapshot = snapshot
        self._next_snapshot = 0.0
        self._steps = 0
        self._arrived = 0
        self._was_idle = True

    def after_tick(self, now: float) -> None:
        """now: seconds of the loop's monotonic clock."""
        generation = self._generation
        self._steps += 1
        arrived = generation.arrived != self._arrived
        if self._metrics is not None and (arrived or self._steps >= METRICS_STEPS):
            self._arrived, self._steps = generation.arrived, 0
            self._metrics(self._metrics_fields())
        idle = generation.idle
        if self._snapshot is not None and (now >= self._next_snapshot or idle != self._was_idle):
            self._next_snapshot = now + SNAPSHOT_S
            self._snapshot(self._snapshot_fields())
        self._was_idle = idle

    def _metrics_fields(self) -> dict[str, Any]:
        used = self._generation.used_tokens()
        return {
            "request_active_slots": len(self._generation.running),
            "request_total_slots": self._generation.limits.max_running or 0,
            "kv_active_blocks": used,
            "kv_total_blocks": self._capacity,
            "num_requests_waiting": len(self._generation.waiting),
            "gpu_cache_usage_perc": used / self._capacity,
            "data_parallel_rank": self._dp_rank,
        }

    def _snapshot_fields(self) -> dict[str, Any]:
        used = self._generation.used_tokens()
        return {
            "dp_rank": self._dp_rank,
            "num_running_reqs": len(self._generation.running),
            "num_waiting_reqs": len(self._generation.waiting),
            "num_used_tokens": used,
            "num_total_tokens": used,
            "num_active_tokens": used,
            "max_total_num_tokens": self._capacity,
            "max_running_requests": self._generation.limits.max_running or 0,
            "token_usage": used / self._capacity,
        }
