# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One module a role; all on the same tree, request scope and shutdown plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from compat.runtime import WorkerRuntime
    from trio_worker.worker import Worker


class Role(Protocol):
    """What differs between workers."""

    def engine_builder(self, config: Any, runtime: WorkerRuntime) -> Callable[[], Any]:
        """Trio. What builds this role's engine, later, in a thread of its own."""

    async def serve(self, worker: Worker) -> None:
        """Trio. Start services, endpoints and registration; returns once registered.

        Raises what keeps the worker from serving: start-up has failed then.
        """
