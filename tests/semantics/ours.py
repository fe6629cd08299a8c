# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our handlers for the harness: the request path as the worker wires it, around a fake engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio_asyncio

from compat.facade import Facade
from compat.feeders import Feeders
from compat.senders import Senders
from compat.tap import tapped
from tests.fakes.context import FakeContext, FakeResponseSender
from tests.fakes.engine import FakeEngine, FakeTokenizerManager
from tests.fakes.journal import Journal
from trio_worker import constants
from trio_worker.recorder import Recorder
from trio_worker.requests.abort import Aborts, order_is_proven
from trio_worker.requests.live import LiveRequests
from trio_worker.responses import coalesce
from trio_worker.roles.decode import DecodeRequests
from trio_worker.roles.diffusion import DiffusionRequests
from trio_worker.roles.multimodal import MultimodalPrefillRequests, MultimodalRequests
from trio_worker.roles.prefill import PrefillRequests

from .harness import Run
from .incumbent import engine_as_shown, handler_of, server_args_of
from .scenario import Scenario

logger = logging.getLogger(__name__)

TappedManager = tapped(FakeTokenizerManager, merge=coalesce, merge_at=constants.MERGE_OUTPUTS_AT)

HANDLERS = {
    "decode": DecodeRequests,
    "prefill": PrefillRequests,
    "dllm": DiffusionRequests,
    "multimodal": MultimodalRequests,
    "multimodal prefill": MultimodalPrefillRequests,
}


class JournalledRecorder(Recorder):
    """The worker's flight recorder; the journal of the run has its events too."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def _note(self, lane: int, what: str, detail: str | None = None) -> None:
        super()._note(lane, what, detail)
        told = {"request": lane - 1, "detail": detail}
        self._journal.record("recorder", f"noted {what}", detail=told)


class OursSubject:
    """A role's requests behind the façade that the runtime calls."""

    def __init__(
        self, run: Run, engine: FakeEngine, serving: trio.Nursery, aborting: trio.Nursery
    ) -> None:
        scenario = run.scenario
        shown = engine_as_shown(engine, scenario)
        self.handler = handler_of(HANDLERS[scenario.role], engine, scenario, None)
        self._aborting = aborting
        self.feeders = Feeders(run.loop)
        self.aborts = Aborts(
            shown.tokenizer_manager,
            aborting,
            order_is_proven=order_is_proven(engine.server_args),
        )
        self.live = LiveRequests(
            loop=run.loop,
            serving=serving,
            feeders=self.feeders,
            aborts=self.aborts,
            tokenizer_manager=shown.tokenizer_manager,
            recorder=JournalledRecorder(run.journal),
        )
        self.senders = Senders()
        self.facade = Facade(
            lambda request, context, egress: self.live.admit(
                context, egress, lambda: self.handler.plan(request, context)
            ),
            self.senders,
            constants.EGRESS_BACKLOG_FRAMES,
        )

    def generate(
        self, request: dict[str, Any], context: FakeContext, sender: FakeResponseSender | None
    ) -> AsyncGenerator[Any, None]:
        return self.facade.generate(request, context, sender)

    def shutdown(self) -> None:
        self.live.migrate_all()

    def cleanup(self) -> None:
        self._aborting.cancel_scope.cancel()

    @property
    def pending_aborts(self) -> int:
        return max(0, len(self._aborting.child_tasks) - 1)  # one child holds the nursery open

    def owns_for_life(self, task: asyncio.Task[Any]) -> bool:
        return False


class Ours:
    """Opens an `OursSubject` on the nurseries that a worker has."""

    name = "ours"
    push = True

    @asynccontextmanager
    async def open(self, run: Run) -> AsyncIterator[tuple[FakeEngine, OursSubject]]:
        """Trio."""
        scenario: Scenario = run.scenario
        engine = FakeEngine(
            run.journal,
            run.script_for,
            manager_class=TappedManager,
            server_args=server_args_of(scenario),
        )
        async with trio.open_nursery() as tree:
            # As in the worker: the engine's nursery has the aborts, and a body of its own, so that
            # taking it down does not cancel whoever opened it.
            aborting = await tree.start(_hold_open)
            async with trio.open_nursery() as serving:
                subject = OursSubject(run, engine, serving, aborting)
                yield engine, subject
                serving.cancel_scope.cancel()
            aborting.cancel_scope.cancel()
        await subject.feeders.close(1.0)
        await trio_asyncio.aio_as_trio(engine.stop)()


async def _hold_open(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        task_status.started(nursery)
