# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One module a role; all on the same tree, request scope and shutdown plan."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from compat.host import EngineHost
    from compat.loop import WorkerLoop
    from compat.runtime import WorkerRuntime
    from trio_worker.worker import Worker


class Role(Protocol):
    """What differs between workers."""

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[EngineHost]:
        """Trio. This role's engine, built in a thread of its own, for the length of the block."""

    async def serve(self, worker: Worker) -> None:
        """Trio. Start services, endpoints and registration; returns once registered.

        Raises what keeps the worker from serving: start-up has failed then.
        """
