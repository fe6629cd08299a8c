# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One module a role; all on the same tree, request scope and shutdown plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from compat.reachable import check_engine_ports

if TYPE_CHECKING:
    from compat.host import EngineHost
    from compat.loop import WorkerLoop
    from compat.runtime import WorkerRuntime
    from trio_worker.shutdown import Shutdown
    from trio_worker.worker import Worker


class Role(ABC):
    """What differs between workers."""

    leads: ClassVar[bool] = True
    """False on a node whose engine follows another node's: it leaves when its group does."""

    def prepare(self, config: Any) -> None:
        """Neither flavour, before Trio. Set what must be set before engine and runtime exist.

        Raises what would keep the worker from starting.
        """
        check_engine_ports(config.server_args)

    def open_early(
        self, loop: WorkerLoop, config: Any, shutdown: Shutdown
    ) -> AbstractAsyncContextManager[object]:
        """Trio. What must exist before the first connection; nothing, for most roles.

        A stop ends it at once, with status 0; whoever leaves then kills its children.
        """
        return nullcontext()

    @abstractmethod
    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[EngineHost]:
        """Trio. This role's engine, built in a thread of its own, for the length of the block."""

    @abstractmethod
    async def serve(self, worker: Worker) -> None:
        """Trio. Start services, endpoints and registration; returns once registered.

        Raises what keeps the worker from serving: start-up has failed then.
        """
