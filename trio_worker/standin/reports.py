# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Load that the scheduler publishes by itself: KvMetrics and load snapshots."""

from __future__ import annotations

import logging
import time
from typing import Any

from trio_worker.standin.generation import Generation

logger = logging.getLogger(__name__)

# Scheduler's default decode_log_interval: decode statistics come every so many steps.
METRICS_STEPS = 40
SNAPSHOT_S = 0.1


class Reports:
    """Sends KvMetrics as SGLang does (after a prefill and every METRICS_STEPS steps, never when
    idle), and writes a load snapshot at most every SNAPSHOT_S seconds and whenever idle begins.

    Nothing is sent where SGLang would send nothing: KvMetrics need --enable-metrics and a KV event
    configuration.
    """

    def __init__(
        self,
        generation: Generation,
        *,
        capacity: int,
        dp_rank: int,
        metrics_socket: Any,
        publishes_kv: bool,
        snapshot_writer: Any,
    ) -> None:
        self._generation = generation
        self._capacity = capacity
        self._dp_rank = dp_rank
        self._metrics_socket = metrics_socket if publishes_kv else None
        self._writer = snapshot_writer
        self._next_snapshot = 0.0
        self._steps = 0
        self._arrived = 0
        self._was_idle = True

    def after_tick(self, now: float) -> None:
        """now: of the loop's monotonic clock, seconds."""
        generation = self._generation
        self._steps += 1
        if generation.arrived != self._arrived or self._steps >= METRICS_STEPS:
            self._arrived, self._steps = generation.arrived, 0
            self._send_metrics()
        if now >= self._next_snapshot or generation.idle != self._was_idle:
            self._next_snapshot, self._was_idle = now + SNAPSHOT_S, generation.idle
            self._write_snapshot()

    def _send_metrics(self) -> None:
        if self._metrics_socket is None:
            return
        from sglang.srt.managers.io_struct import sock_send
        from sglang.srt.managers.scheduler_components.kv_events_publisher import KvMetrics

        used = self._generation.used_tokens()
        metrics = KvMetrics(
            request_active_slots=len(self._generation.running),
            request_total_slots=self._generation.limits.max_running or 0,
            kv_active_blocks=used,
            kv_total_blocks=self._capacity,
            num_requests_waiting=len(self._generation.waiting),
            gpu_cache_usage_perc=used / self._capacity,
            data_parallel_rank=self._dp_rank,
        )
        sock_send(self._metrics_socket, metrics)

    def _write_snapshot(self) -> None:
        if self._writer is None:
            return
        from sglang.srt.managers.load_snapshot import LoadSnapshot

        used = self._generation.used_tokens()
        self._writer.write(
            LoadSnapshot(
                timestamp=time.time(),
                dp_rank=self._dp_rank,
                num_running_reqs=len(self._generation.running),
                num_waiting_reqs=len(self._generation.waiting),
                num_used_tokens=used,
                num_total_tokens=used,
                num_active_tokens=used,
                max_total_num_tokens=self._capacity,
                max_running_requests=self._generation.limits.max_running or 0,
                token_usage=used / self._capacity,
            )
        )
