# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A role's requests on the branches that a worker has, and calls as the runtime makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio
import trio_asyncio

from compat.facade import Facade
from compat.feeders import Feeders
from compat.loop import WorkerLoop, open_loop
from compat.senders import Senders
from tests.fakes.context import FakeContext
from tests.fakes.journal import Journal
from trio_worker import constants
from trio_worker.requests.abort import Aborts
from trio_worker.requests.live import LiveRequests

LIMIT_S = 30.0
"""Seconds after which a call counts as hung."""


class Call:
    """One request: what it answered, or how it failed."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self.answers: list[Any] = []
        self.error: BaseException | None = None
        self.ended = trio.Event()

    async def finish(self) -> None:
        """Trio. Until it has ended."""
        with trio.fail_after(LIMIT_S):
            await self.ended.wait()


class Rig:
    """Requests of one handler. Its `live` is what the shutdown plan sees."""

    def __init__(
        self,
        loop: WorkerLoop,
        journal: Journal,
        serving: trio.Nursery,
        aborting: trio.Nursery,
        manager: Any,
        handler: Any,
    ) -> None:
        self.loop = loop
        self.journal = journal
        self.handler = handler
        self.feeders = Feeders(loop)
        self.aborts = Aborts(manager, aborting, order_is_proven=True)
        self.live = LiveRequests(
            loop=loop,
            serving=serving,
            feeders=self.feeders,
            aborts=self.aborts,
            tokenizer_manager=manager,
        )
        self.facade = Facade(
            lambda request, context, egress: self.live.admit(
                context, egress, lambda: handler.plan(request, context)
            ),
            Senders(),
            constants.EGRESS_BACKLOG_FRAMES,
        )

    def call(self, request: dict[str, Any], **context: Any) -> Call:
        """Trio. Start one request."""
        call = Call(FakeContext(self.journal, **context))

        async def read() -> None:
            try:
                async for answer in self.facade.generate(request, call.context):
                    call.answers.append(answer)
            except BaseException as error:
                call.error = error

        task: asyncio.Task[None] = self.loop.create_task(read())
        task.add_done_callback(lambda _task: call.ended.set())
        return call

    async def answer(self, request: dict[str, Any], **context: Any) -> Any:
        """Trio. The one answer to `request`; raises what the request raises."""
        call = self.call(request, **context)
        await call.finish()
        if call.error is not None:
            raise call.error
        (answer,) = call.answers
        return answer


async def incumbents(handler: Any, request: dict[str, Any], context: FakeContext) -> Any:
    """Trio. What the incumbent's handler answers; raises what it raises."""

    async def read() -> list[Any]:
        return [answer async for answer in handler.generate(request, context)]

    (answer,) = await trio_asyncio.aio_as_trio(read)()
    return answer


@asynccontextmanager
async def open_rig(
    make: Callable[[WorkerLoop, Journal], tuple[Any, Any]],
) -> AsyncIterator[Rig]:
    """Trio. ``make(loop, journal)`` returns the tokenizer manager, if any, and the handler."""
    async with open_loop() as loop:
        journal = Journal()
        journal.open()
        manager, handler = make(loop, journal)
        async with trio.open_nursery() as aborting, trio.open_nursery() as serving:
            rig = Rig(loop, journal, serving, aborting, manager, handler)
            yield rig
            serving.cancel_scope.cancel()
            aborting.cancel_scope.cancel()
        await rig.feeders.close(1.0)


def config(**server_args: Any) -> SimpleNamespace:
    """``dynamo.sglang.args.Config``, as far as a handler looks at it."""
    return SimpleNamespace(
        server_args=SimpleNamespace(**server_args),
        serving_mode=None,
        dynamo_args=SimpleNamespace(
            use_sglang_tokenizer=False,
            media_output_fs_url="file:///nowhere",
            media_output_http_url=None,
        ),
    )
