# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
from typing import Any

from tests.standin.harness import Bench, request
from trio_worker.standin.reports import METRICS_STEPS, SNAPSHOT_S, Reports


def reporting(bench: Bench) -> tuple[Reports, list[dict[str, Any]], list[dict[str, Any]]]:
    metrics: list[dict[str, Any]] = []
    snapshots: list[dict[str, Any]] = []
    reports = Reports(
        bench.generation,
        capacity=1000,
        dp_rank=3,
        metrics=metrics.append,
        snapshot=snapshots.append,
    )
    return reports, metrics, snapshots


def test_metrics_come_after_an_arrival_and_then_every_so_many_steps() -> None:
    bench = Bench(max_running=7)
    reports, metrics, _ = reporting(bench)
    bench.submit(request("a", [1, 2], 500))
    for _ in range(1 + 2 * METRICS_STEPS):
        bench.steps(1)
        reports.after_tick(0.0)
    assert [m["kv_active_blocks"] for m in metrics] == [
        3,
        3 + METRICS_STEPS,
        3 + 2 * METRICS_STEPS,
    ]
    assert metrics[0] == {
        "request_active_slots": 1,
        "request_total_slots": 7,
        "kv_active_blocks": 3,
        "kv_total_blocks": 1000,
        "num_requests_waiting": 0,
        "gpu_cache_usage_perc": 0.003,
        "data_parallel_rank": 3,
    }


def test_snapshots_come_at_intervals_and_when_idleness_begins() -> None:
    bench = Bench()
    reports, _, snapshots = reporting(bench)
    bench.submit(request("a", [1, 2], 4))
    for now in (0.0, SNAPSHOT_S / 4, SNAPSHOT_S * 1.25, SNAPSHOT_S * 1.3):
        bench.steps(1)
        reports.after_tick(now)
    assert [s["num_running_reqs"] for s in snapshots] == [1, 1, 0]
    assert snapshots[-1]["num_used_tokens"] == 0


def test_nothing_is_published_where_sglang_publishes_nothing() -> None:
    bench = Bench()
    reports = Reports(bench.generation, capacity=1, dp_rank=0, metrics=None, snapshot=None)
    bench.submit(request("a"))
    bench.steps(1)
    reports.after_tick(0.0)
    assert len(bench.messages) == 1
