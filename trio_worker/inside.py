# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What a running worker looks like from inside: nurseries, requests, the shutdown plan.

Never prompts or answers. As text on SIGUSR1, as JSON on the system status server's engine route
``inside`` while that server lives.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from trio_worker.requests.request import Request
    from trio_worker.worker import Worker

ROUTE = "inside"
MAX_TASKS = 200
"""Tasks told of one nursery; a worker with more says how many it leaves out."""


def request_view(request: Request, now: float) -> dict[str, Any]:
    """One request as plain values; ages and deadlines in seconds from now."""
    deadline = request.scope.deadline
    plan = request.plan
    return {
        "rid": plan.engine_rid if plan is not None else None,
        "context": request.context_id,
        "phase": request.phase.value,
        "age_s": round(now - request.admitted_at, 3),
        "accepted": request.accepted,
        "backlog": request.backlog,
        "deadline_in_s": None if math.isinf(deadline) else round(deadline - now, 3),
    }


def view(worker: Worker) -> dict[str, Any]:
    """Trio or asyncio. The worker as plain values."""
    now = trio.current_time()
    requests = worker.requests
    manager = worker.engine.tokenizer_manager
    return {
        "requests": [request_view(request, now) for request in requests],
        "counts": {
            "admitted": requests.admitted,
            "live": requests.count,
            "migrated": requests.migrated,
            "refused": requests.refused,
            "drains_timed_out": requests.drains_timed_out,
        },
        "engine_registry": len(getattr(manager, "rid_to_state", ())),
        "engine": worker.engine.statistics(),
        "aborts": dataclasses.asdict(requests.aborts.counts),
        "feeders": {
            "running": len(requests.feeders),
            "started": requests.feeders.started,
            "detached": requests.feeders.detached,
        },
        "senders": dataclasses.asdict(worker.senders.stats),
        "unhandled_asyncio_errors": worker.loop.unhandled_errors,
        "shutdown": dataclasses.asdict(worker.shutdown.view()),
    }


def tree(root: trio.lowlevel.Task | None = None) -> list[str]:
    """Trio or asyncio. The nursery tree, one line a task, indented."""
    root = root or trio.lowlevel.current_root_task()
    return [] if root is None else _lines(root, "")


def _lines(task: trio.lowlevel.Task, indent: str) -> list[str]:
    lines = [f"{indent}{task.name}"]
    for nursery in task.child_nurseries:
        children = sorted(nursery.child_tasks, key=lambda child: child.name)
        for child in children[:MAX_TASKS]:
            lines += _lines(child, indent + "  ")
        if len(children) > MAX_TASKS:
            lines.append(f"{indent}  … and {len(children) - MAX_TASKS} more")
    return lines


def text(worker: Worker) -> str:
    """Trio or asyncio. Tree and figures for a person."""
    seen = view(worker)
    requests = seen.pop("requests")
    lines = ["worker tree:", *tree(), "requests:"]
    lines += [
        f"  {one['rid']} {one['phase']} age {one['age_s']} s, {one['accepted']} accepted, "
        f"backlog {one['backlog']}, deadline in {one['deadline_in_s']} s, context {one['context']}"
        for one in requests
    ] or ["  none"]
    lines += [f"{name}: {value}" for name, value in seen.items()]
    return "\n".join(lines)
