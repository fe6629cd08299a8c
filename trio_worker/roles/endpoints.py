# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What every role needs to be called: names, the façade, and an endpoint that is never busy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from compat.facade import Facade
from compat.runtime import WorkerRuntime
from trio_worker import constants
from trio_worker.requests.plan import Plan

if TYPE_CHECKING:
    from trio_worker.worker import Worker

LEASE_PROBE = "lease_probe"
"""Endpoint of roles without control endpoints; nobody has to call it.

A lost lease ends serve futures, but that of an endpoint with requests in flight only after the
runtime's own drain, so that a worker with one long generation would learn last that nobody finds
it any more. This endpoint never has any: it ends at once (DESIGN §6).
"""


def endpoint_name(dynamo_args: Any, endpoint: str | None = None) -> str:
    """``namespace.component.endpoint``; default: the role's generate endpoint."""
    return f"{dynamo_args.namespace}.{dynamo_args.component}.{endpoint or dynamo_args.endpoint}"


def request_facade(
    worker: Worker, plan: Callable[[dict[str, Any], Any], Coroutine[Any, Any, Plan]]
) -> Facade:
    """Trio. A generate endpoint's face: each call becomes a request of `worker`, as `plan` says.

    ``plan(request, context)`` is a role's (asyncio).
    """
    return Facade(
        lambda request, context, egress: worker.requests.admit(
            context, egress, lambda: plan(request, context)
        ),
        worker.senders,
        constants.EGRESS_BACKLOG_FRAMES,
    )


async def answer_probe(request: Any = None) -> AsyncGenerator[dict[str, str], None]:
    """asyncio. One answer, for whoever asks."""
    yield {"status": "ok"}


def serve_lease_probe(runtime: WorkerRuntime, endpoint: Any) -> None:
    """Trio. Serve `endpoint`, made under the name `LEASE_PROBE` before anything was served."""
    runtime.serve(endpoint, answer_probe)
