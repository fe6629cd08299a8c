# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What a running worker looks like from inside: nurseries, requests, the shutdown plan.

Never prompts or answers. As text on SIGUSR1, as JSON on the system status server's engine route
``inside`` while that server lives (``trio-worker top`` shows it).
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any

import trio

from trio_worker import __version__, tree

if TYPE_CHECKING:
    from trio_worker.requests.request import Request
    from trio_worker.worker import Worker

ROUTE = "inside"

MAX_REQUESTS = 1000
"""Requests that are told of, the oldest; a worker with more says how many it leaves out."""


def request_view(request: Request, now: float, role: str) -> dict[str, Any]:
    """One request as plain values; ages and deadlines in seconds from now."""
    deadline = request.scope.deadline
    plan = request.plan
    return {
        "rid": plan.engine_rid if plan is not None else None,
        "context": request.context_id,
        "role": role,
        "phase": request.phase.value,
        "age_s": round(now - request.admitted_at, 3),
        "accepted": request.accepted,
        "tokens": plan.responses.tokens if plan is not None else 0,
        "backlog": request.backlog,
        "stuck_s": request.stuck_seconds,
        "deadline_in_s": None if math.isinf(deadline) else round(deadline - now, 3),
    }


def view(worker: Worker, *, stacks: bool = False) -> dict[str, Any]:
    """Trio or asyncio. The worker as plain values; what may grow is bounded.

    `stacks`: where every task and thread stands as well, which costs far more.
    """
    now = trio.current_time()
    requests = worker.requests
    manager = worker.engine.tokenizer_manager
    role = worker.role
    live = sorted(requests, key=lambda request: request.admitted_at)
    seen: dict[str, Any] = {
        "worker": {
            "pid": os.getpid(),
            "version": __version__,
            "role": role,
            "model": worker.model,
            "uptime_s": round(now - worker.instruments.started_at, 3),
        },
        "tree": tree.tree(stacks=stacks),
        "asyncio_tasks": tree.asyncio_tasks(worker.loop),
        "requests": [request_view(request, now, role) for request in live[:MAX_REQUESTS]],
        "requests_left_out": max(0, len(live) - MAX_REQUESTS),
        "counts": {
            "admitted": requests.admitted,
            "live": requests.count,
            "migrated": requests.migrated,
            "refused": requests.refused,
            "drains_ended": requests.drains_ended,
            "drains_timed_out": requests.drains_timed_out,
        },
        "engine_registry": len(getattr(manager, "rid_to_state", ())),
        "engine": worker.engine.statistics(),
        "aborts": {
            **dataclasses.asdict(requests.aborts.counts),
            "pending": [
                {
                    "rid": abort.rid,
                    "context": abort.context_id,
                    "waits_for": abort.waits_for,
                    "age_s": round(now - abort.since, 3),
                }
                for abort in list(requests.aborts.pending)[:MAX_REQUESTS]
            ],
        },
        "feeders": {
            "running": len(requests.feeders),
            "started": requests.feeders.started,
            "detached": requests.feeders.detached,
            "adrift": [
                {"context": adrift.context_id, "age_s": round(now - adrift.since, 3)}
                for adrift in list(requests.feeders.adrift.values())[:MAX_REQUESTS]
            ],
        },
        "senders": dataclasses.asdict(worker.senders.stats),
        "unhandled_asyncio_errors": worker.loop.unhandled_errors,
        "garbage": dataclasses.asdict(worker.garbage.stats),
        "shutdown": shutdown_view(worker),
    }
    if stacks:
        seen["asyncio_stacks"] = tree.asyncio_stacks(worker.loop)
        seen["thread_stacks"] = tree.thread_stacks()
    return seen


def shutdown_view(worker: Worker) -> dict[str, Any]:
    """Trio or asyncio. The plan: what runs now, what is over, the seconds that are left."""
    seen = worker.shutdown.view()
    return {
        **dataclasses.asdict(seen),
        "phases": [
            {
                "phase": record.phase.label,
                "seconds": round(record.seconds, 3),
                "outcome": record.outcome,
            }
            for record in seen.phases
        ],
    }


def text(worker: Worker) -> str:
    """Trio or asyncio. Tree and figures for a person."""
    seen = view(worker)
    requests = seen.pop("requests")
    lines = ["worker tree:", *tree.lines(seen.pop("tree")), "requests:"]
    lines += [
        f"  {one['rid']} {one['phase']} age {one['age_s']} s, {one['accepted']} accepted, "
        f"{one['tokens']} tokens, backlog {one['backlog']}, deadline in {one['deadline_in_s']} s, "
        f"context {one['context']}"
        for one in requests
    ] or ["  none"]
    lines += [f"{name}: {value}" for name, value in seen.items()]
    return "\n".join(lines)


def early_text(doing: str) -> str:
    """Trio or asyncio. What there is to see before the worker is up."""
    lines = [f"{doing}; tree so far:", *tree.lines(tree.tree()), "threads:"]
    for thread in tree.thread_stacks():
        lines += [f"  {thread['task']}", *(f"    {place}" for place in thread["stack"])]
    return "\n".join(lines)
