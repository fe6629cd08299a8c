# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our metrics, beside the incumbent's on the system status server's ``/metrics``.

Every figure is read from counters that are there anyway, when somebody scrapes. What they mean is
in ``docs/metrics.md``, which a test compares with this list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dynamo.common.utils.prometheus import register_engine_metrics_callback
from dynamo.prometheus_names import frontend_perf, name_prefix

from trio_worker.buckets import Buckets
from trio_worker.requests.request import Phase
from trio_worker.responses import coalesced

if TYPE_CHECKING:
    from trio_worker.worker import Worker

Reading = float | Mapping[str, float] | Buckets
"""A number, one for each value of the label, or a histogram."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. Read from a thread of the status server: plain values only, no waiting."""

    name: str
    """Without the prefix."""
    kind: str
    """counter, gauge or histogram."""
    unit: str
    help: str
    read: Callable[[Worker], Reading]
    label: str = ""

    @property
    def full_name(self) -> str:
        """As Prometheus sees it."""
        return f"{name_prefix.COMPONENT}_{self.name}"


def _by_phase(worker: Worker) -> dict[str, float]:
    found = Counter(request.phase.value for request in worker.requests)
    return {phase.value: found[phase.value] for phase in Phase}


METRICS: Final = (
    Metric(
        "live_requests",
        "gauge",
        "requests",
        "Requests between admission and outcome, by state.",
        _by_phase,
        "state",
    ),
    Metric(
        "migrations_asked_total",
        "counter",
        "requests",
        "Requests ended with EngineShutdown, which the frontend migrates: in flight, or refused.",
        lambda worker: {
            "in_flight": worker.requests.migrated,
            "refused": worker.requests.refused,
        },
        "reason",
    ),
    Metric(
        "aborts_ordered_total",
        "counter",
        "aborts",
        "Aborts asked for because of a client's stop or a shutdown.",
        lambda worker: worker.requests.aborts.counts.ordered,
    ),
    Metric(
        "aborts_total",
        "counter",
        "aborts",
        "What became of aborts: sent to SGLang, needless (gone), never registered (abandoned), or "
        "failed.",
        lambda worker: {
            name: getattr(worker.requests.aborts.counts, name)
            for name in ("sent", "gone", "abandoned", "failed")
        },
        "outcome",
    ),
    Metric(
        "aborts_confirmed_total",
        "counter",
        "aborts",
        "Sent aborts after which SGLang ended the stream.",
        lambda worker: worker.requests.aborts.counts.confirmed,
    ),
    Metric(
        "aborts_retried_total",
        "counter",
        "aborts",
        "Aborts sent again, where their order cannot be proven.",
        lambda worker: worker.requests.aborts.counts.retried,
    ),
    Metric(
        "aborts_unconfirmed_total",
        "counter",
        "aborts",
        "Aborts whose request SGLang still held after the last retry.",
        lambda worker: worker.requests.aborts.counts.unconfirmed,
    ),
    Metric(
        "aborts_pending",
        "gauge",
        "aborts",
        "Aborts that wait for the dispatch of their request, or for a confirmation.",
        lambda worker: len(worker.requests.aborts.pending),
    ),
    Metric(
        "drains_total",
        "counter",
        "drains",
        "Streams consumed after their client had left, by how that ended.",
        lambda worker: {
            "ended": worker.requests.drains_ended,
            "timed_out": worker.requests.drains_timed_out,
        },
        "outcome",
    ),
    Metric(
        "feeders_detached_total",
        "counter",
        "feeders",
        "Streams of SGLang that resisted their cancellation and were left behind.",
        lambda worker: worker.requests.feeders.detached,
    ),
    Metric(
        "feeders_adrift",
        "gauge",
        "feeders",
        "Detached feeders that still run.",
        lambda worker: len(worker.requests.feeders.adrift),
    ),
    Metric(
        "senders_stuck",
        "gauge",
        "threads",
        "Sender threads inside one send for too long: their clients do not read.",
        lambda worker: worker.senders.stats.stuck,
    ),
    Metric(
        "sender_stalls_total",
        "counter",
        "times",
        "How often a sender thread became stuck.",
        lambda worker: worker.senders.stats.stuck_ever,
    ),
    Metric(
        "coalesced_chunks_total",
        "counter",
        "chunks",
        "Chunks that were merged into another because their reader was behind.",
        lambda _worker: coalesced(),
    ),
    Metric(
        frontend_perf.EVENT_LOOP_DELAY_SECONDS,
        "histogram",
        "seconds",
        "How late the loop runs a task that is due (looked at ten times a second).",
        lambda worker: worker.instruments.lag.delays,
    ),
    Metric(
        "gc_pause_seconds",
        "histogram",
        "seconds",
        "Pauses of Python's garbage collector, all generations.",
        lambda worker: worker.garbage.pauses,
    ),
    Metric(
        "gc_full_collections_total",
        "counter",
        "collections",
        "Full collections, by whether requests were live.",
        lambda worker: {
            "idle": worker.garbage.stats.full - worker.garbage.stats.full_while_live,
            "live": worker.garbage.stats.full_while_live,
        },
        "load",
    ),
    Metric(
        "shutdown_phase_seconds",
        "gauge",
        "seconds",
        "How long each phase of the stop took, or has taken so far.",
        lambda worker: worker.shutdown.phase_seconds(worker.instruments.recorder.now()),
        "phase",
    ),
)
"""All of them. Two names must not differ in ``_total`` alone."""


def show(worker: Worker, endpoint: Any) -> None:
    """Trio. Have `endpoint` show them. Only after the engine is built.

    SGLang's multiprocess mode has to be set before prometheus_client is imported.
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(collector_of(worker))
    dynamo_args = worker.config.dynamo_args
    register_engine_metrics_callback(
        endpoint,
        registry,
        namespace_name=dynamo_args.namespace,
        component_name=dynamo_args.component,
        endpoint_name=dynamo_args.endpoint,
        model_name=worker.model,
    )


def collector_of(worker: Worker) -> Any:
    """Trio. A ``prometheus_client`` collector."""
    from prometheus_client.registry import Collector

    class WorkerCollector(Collector):
        def collect(self) -> Iterator[Any]:
            return families(worker)

    return WorkerCollector()


def families(worker: Worker) -> Iterator[Any]:
    """Any thread. What a scrape finds, family by family."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    for metric in METRICS:
        reading = metric.read(worker)
        if isinstance(reading, Buckets):
            yield HistogramMetricFamily(
                metric.full_name, metric.help, buckets=reading.cumulative(), sum_value=reading.sum
            )
            continue
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.full_name, metric.help, labels=[metric.label] if metric.label else [])
        values = reading.items() if isinstance(reading, Mapping) else [("", reading)]
        for value, number in values:
            family.add_metric([value] if metric.label else [], number)
        yield family
