# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rule 55: with the collector off, a request is freed by reference counting when it ends.

Watched are what came in (the request dict, the context), what is SGLang's (its state, its stream,
the last chunk) and what is ours (the live request). All have to be gone before the next one comes.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
import pytest
import trio
import trio_asyncio
from dynamo.sglang.args import Config
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
from trio.testing import MockClock

from compat.facade import Facade
from compat.feeders import Feeders
from compat.loop import WorkerLoop, open_loop
from compat.senders import Senders
from compat.tap import tapped
from tests.fakes.context import FakeContext, FakeResponseSender
from tests.fakes.engine import FakeEngine, FakeTokenizerManager
from tests.fakes.journal import Journal
from tests.fakes.script import EngineScript, Output, finish_error, tokens
from trio_worker import constants
from trio_worker.requests.abort import Aborts
from trio_worker.requests.live import LiveRequests
from trio_worker.responses import coalesce
from trio_worker.roles.decode import DecodeRequests

REQUESTS = 20
"""One after the other, of each kind."""


class Body(dict[str, Any]):
    """A request dict that can be watched."""


class Latency(float):
    """A number in the last chunk that can be watched."""


last_chunks: list[weakref.ref[Latency]] = []
"""Of the running test. Here, since SGLang pickles the time stats that fill it."""


class WatchedStats(APIServerReqTimeStats):
    """Puts something to watch into each last chunk."""

    def get_e2e_latency(self) -> float:
        latency = Latency(super().get_e2e_latency())
        last_chunks.append(weakref.ref(latency))
        return latency


class WatchedManager(FakeTokenizerManager):
    """Has its states make last chunks that can be watched."""

    def _init_req_state(self, obj: Any, request: Any = None) -> None:
        super()._init_req_state(obj, request)
        self.rid_to_state[obj.rid].time_stats.__class__ = WatchedStats


TappedManager = tapped(WatchedManager, merge=coalesce, merge_at=constants.MERGE_OUTPUTS_AT)


class Path:
    """The request path, one request at a time."""

    def __init__(
        self, loop: WorkerLoop, engine: FakeEngine, serving: trio.Nursery, aborting: trio.Nursery
    ) -> None:
        config = Config(
            engine.server_args, SimpleNamespace(use_sglang_tokenizer=False, enable_rl=False)
        )
        handler = DecodeRequests(engine, config, None, None, None)
        self.loop = loop
        self.journal = engine.journal
        self.watched = engine.tokenizer_manager.watched
        self.live = LiveRequests(
            loop=loop,
            serving=serving,
            feeders=Feeders(loop),
            aborts=Aborts(engine.tokenizer_manager, aborting, order_is_proven=True),
            tokenizer_manager=engine.tokenizer_manager,
        )

        def admit(body: Any, context: Any, egress: Any) -> Any:
            request = self.live.admit(context, egress, lambda: handler.plan(body, context))
            self.watched.append(("live request", weakref.ref(request)))
            return request

        self.facade = Facade(admit, Senders(), constants.EGRESS_BACKLOG_FRAMES)

    async def serve(self, body: Body, *, push: bool, leave: Callable[[FakeContext], None]) -> str:
        """Trio. Serve one request to its end, and say how it ended.

        `leave` is called when the first output is there.
        """
        context = FakeContext(self.journal)
        self.watched += [("context", weakref.ref(context)), ("body", weakref.ref(body))]
        sender = FakeResponseSender(self.journal, context) if push else None
        stream = self.facade.generate(body, context, sender)
        del body
        while True:
            poll = self._poll(stream)
            if push:
                await trio.sleep(0.15)
                leave(context)
            await _wait(poll)
            if poll.exception() is not None:
                return type(poll.exception()).__name__
            leave(context)

    def _poll(self, stream: Any) -> asyncio.Task[Any]:
        """As pyo3 does it: without generator hooks, in an empty context."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            awaitable = stream.__anext__()
        finally:
            sys.set_asyncgen_hooks(*hooks)
        return contextvars.Context().run(asyncio.ensure_future, awaitable, loop=self.loop)

    def alive(self) -> list[str]:
        alive = [what for what, reference in self.watched if reference() is not None]
        return alive + ["last chunk" for reference in last_chunks if reference() is not None]


async def _wait(task: asyncio.Task[Any]) -> None:
    ended = trio.Event()
    task.add_done_callback(lambda _task: ended.set())
    await ended.wait()


@asynccontextmanager
async def open_path(script: EngineScript, *, tap: bool) -> AsyncIterator[Path]:
    journal = Journal()
    journal.open()
    async with open_loop() as loop:
        engine = FakeEngine(
            journal,
            lambda _obj: script,
            manager_class=TappedManager if tap else WatchedManager,
        )
        async with trio.open_nursery() as aborting, trio.open_nursery() as serving:
            yield Path(loop, engine, serving, aborting)
            serving.cancel_scope.cancel()
            aborting.cancel_scope.cancel()
        await trio_asyncio.aio_as_trio(engine.stop)()


def stay(_context: FakeContext) -> None:
    """The client takes what there is."""


def stop(context: FakeContext) -> None:
    context.stop()


def body() -> Body:
    return Body(token_ids=[1, 2, 3], stop_conditions={"max_tokens": 9}, sampling_options={})


@pytest.fixture
def no_collector() -> Iterator[None]:
    last_chunks.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


REFUSED = finish_error(500, "InternalServerError", "scripted: failed")

ENDS = {
    "finished": (EngineScript(outputs=tokens(4)), stay, "StopAsyncIteration"),
    "stopped": (EngineScript(outputs=tokens(40)), stop, "StopAsyncIteration"),
    "failed": (EngineScript(outputs=(Output(0.1), Output(0.1, finish=REFUSED))), stay, "HttpError"),
}


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
@pytest.mark.parametrize("tap", [True, False], ids=["tapped", "untapped"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("no_collector")
async def test_rule_055_a_request_is_freed_when_it_ends(
    end: str, tap: bool, push: bool, autojump_clock: MockClock
) -> None:
    script, leave, outcome = ENDS[end]
    async with open_path(script, tap=tap) as path:
        for _ in range(REQUESTS):
            assert await path.serve(body(), push=push, leave=leave) == outcome
            await path.loop.synchronize()
            assert path.alive() == []
        seen = Counter(what for what, _ in path.watched)
        assert set(seen) == {"body", "context", "state", "stream", "live request"}
        assert set(seen.values()) == {REQUESTS}
        assert len(last_chunks) == REQUESTS
