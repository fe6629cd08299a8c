# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our request path behind the incumbent's handler classes, as the incumbent's tests build them.

Those tests make a handler with ``__new__`` and set what they need on it: an engine of plain
functions, an ``asyncio.Event`` for the shutdown, lambdas for request building. Ours brings up its
Trio side when ``generate`` is called, on the nurseries that `run_test` holds open.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import trio
import trio_asyncio
from dynamo.sglang.request_handlers import cancellation

from compat.facade import Facade
from compat.feeders import Feeders
from compat.generator import GeneratorHost
from compat.loop import WorkerLoop, open_loop
from compat.permanent_thread import PermanentThread
from compat.senders import Senders
from trio_worker import constants
from trio_worker.requests import abort
from trio_worker.requests.live import LiveRequests
from trio_worker.responses.multimodal import MultimodalResponses
from trio_worker.roles.decode import DecodeRequests
from trio_worker.roles.diffusion import DiffusionRequests
from trio_worker.roles.encode import EncodeRequests
from trio_worker.roles.media import ImageRequests
from trio_worker.roles.multimodal import MultimodalPrefillRequests, MultimodalRequests
from trio_worker.roles.pooling import EmbeddingRequests, RerankRequests
from trio_worker.roles.prefill import PrefillRequests


@dataclass
class Stage:
    """What one test runs on."""

    loop: WorkerLoop
    serving: trio.Nursery
    aborting: trio.Nursery
    feeders: Feeders


stage: Stage | None = None


class _Peer:
    """What both adapters add to our roles: ``generate``, as the tests call it."""

    tap = False  # the tests' tokenizer manager is a plain namespace

    engine: Any
    config: Any
    shutdown_event: asyncio.Event | None = None
    plan: Callable[..., Any]

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        """asyncio."""
        if not hasattr(context, "is_stopped"):
            context.is_stopped = lambda: False  # the prefill tests' context is never asked
        if not hasattr(context, "async_killed_or_stopped"):
            context = _Unstopped(context)
        live, facade = self._ours()
        watcher = asyncio.get_running_loop().create_task(self._watch_shutdown(live))
        try:
            async for response in facade.generate(request, context, None):
                yield response
        finally:
            watcher.cancel()

    def _ours(self) -> tuple[LiveRequests, Facade]:
        assert stage is not None
        # Some tests' engine is the one function that they look at.
        manager = getattr(self.engine, "tokenizer_manager", None)
        aborts = abort.Aborts(
            manager,
            stage.aborting,
            order_is_proven=abort.order_is_proven(self.config.server_args),
        )
        live = LiveRequests(
            loop=stage.loop,
            serving=stage.serving,
            feeders=stage.feeders,
            aborts=aborts,
            tokenizer_manager=manager,
        )
        facade = Facade(
            lambda request, context, egress: live.admit(
                context, egress, lambda: self.plan(request, context)
            ),
            Senders(),
            constants.EGRESS_BACKLOG_FRAMES,
        )
        return live, facade

    async def _watch_shutdown(self, live: LiveRequests) -> None:
        if self.shutdown_event is not None:
            await self.shutdown_event.wait()
            live.migrate_all()


class PeerDecodeHandler(_Peer, DecodeRequests):  # type: ignore[misc]
    """``DecodeWorkerHandler`` to the tests; our request path inside."""


class PeerPrefillHandler(_Peer, PrefillRequests):  # type: ignore[misc]
    """``PrefillWorkerHandler`` to the tests; our request path inside."""


class _Unstopped:
    """The tests' context, a mock, a stub or None: nobody stops the request."""

    def __init__(self, context: Any) -> None:
        self._context = context

    @property
    def given(self) -> Any:
        """What the test has given."""
        return self._context

    def is_stopped(self) -> bool:
        return False

    def async_killed_or_stopped(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        if name == "notify_first_token":
            return getattr(self._context, name, lambda: None)
        return getattr(self._context, name)

    def id(self) -> str:
        name = getattr(self._context, "id", None)
        return "request" if name is None else name()


class _OnePeer:
    """What the adapters of roles that answer once add: ``generate``, as the tests call it."""

    plan: Callable[..., Any]

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        """asyncio."""
        assert stage is not None
        live = LiveRequests(
            loop=stage.loop,
            serving=stage.serving,
            feeders=stage.feeders,
            aborts=abort.Aborts(None, stage.aborting, order_is_proven=True),
            tokenizer_manager=None,
        )
        facade = Facade(
            lambda request, context, egress: live.admit(
                context, egress, lambda: self.plan(request, context)
            ),
            Senders(),
            constants.EGRESS_BACKLOG_FRAMES,
        )
        async for answer in facade.generate(request, _Unstopped(context), None):
            yield answer


class PeerEmbeddingHandler(_OnePeer, EmbeddingRequests):  # type: ignore[misc]
    """``EmbeddingWorkerHandler`` to the tests; our request path inside."""


class PeerRerankHandler(_OnePeer, RerankRequests):  # type: ignore[misc]
    """``RerankWorkerHandler`` to the tests; our request path inside."""


class PeerImageHandler(_OnePeer, ImageRequests):  # type: ignore[misc]
    """``ImageDiffusionWorkerHandler`` to the tests; our request path inside."""

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        """asyncio."""
        assert stage is not None
        host = GeneratorHost(self.generator, stage.loop, PermanentThread("generator"))
        self.attach_host(host)
        try:
            async for answer in super().generate(request, context):
                yield answer
        finally:
            host.side.close()


async def _never(**_kwargs: Any) -> Any:
    raise AssertionError("nothing is to be submitted")


class PeerDiffusionHandler(_OnePeer, DiffusionRequests):  # type: ignore[misc]
    """``DiffusionWorkerHandler`` to the tests; our request path inside."""


class _MultimodalPeer(_OnePeer):
    """The tests give these handlers neither engine nor processor where they are not reached."""

    engine = SimpleNamespace(async_generate=_never)
    embeddings_processor: Any = None


class PeerMultimodalHandler(_MultimodalPeer, MultimodalRequests):  # type: ignore[misc]
    """``MultimodalWorkerHandler`` to the tests; our request path inside."""


class PeerMultimodalPrefillHandler(_MultimodalPeer, MultimodalPrefillRequests):  # type: ignore[misc]
    """``MultimodalPrefillWorkerHandler`` to the tests; our request path inside."""


class PeerEncodeHandler(_OnePeer, EncodeRequests):  # type: ignore[misc]
    """``MultimodalEncodeWorkerHandler`` to the tests; our request path inside."""

    # Not given where they are not reached.
    embedding_sender: Any = None
    pd_worker_client: Any = None

    async def plan(self, request: Any, context: Any) -> Any:
        """asyncio. The tests' client wants the context that they gave."""
        planner = copy.copy(self)
        planner.pd_worker_client = _Given(self.pd_worker_client)
        return await EncodeRequests.plan(planner, request, context)


class _Given:
    """The tests' client of another worker, asked with the tests' context."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def round_robin(self, request: Any, context: Any = None) -> Any:
        return await self._client.round_robin(request, context=context.given)


class PeerStreamProcessor:
    """``StreamProcessor`` to the tests; our conversion inside."""

    @staticmethod
    async def process_sglang_stream(
        stream_source: AsyncIterator[Any], *_args: Any, **_kwargs: Any
    ) -> AsyncIterator[str]:
        """asyncio. Texts, as a multimodal worker answers."""
        responses = MultimodalResponses()
        async for chunk in stream_source:
            text = responses.convert(chunk, shutting_down=False)
            if text is not None:
                yield text


REBOUND: dict[str, tuple[type, str]] = {
    "EmbeddingWorkerHandler": (PeerEmbeddingHandler, "embedding.embedding_handler"),
    "RerankWorkerHandler": (PeerRerankHandler, "rerank.rerank_handler"),
    "ImageDiffusionWorkerHandler": (
        PeerImageHandler,
        "image_diffusion.image_diffusion_handler",
    ),
    "DiffusionWorkerHandler": (PeerDiffusionHandler, "llm.diffusion_handler"),
    "MultimodalWorkerHandler": (PeerMultimodalHandler, "multimodal.worker_handler"),
    "MultimodalPrefillWorkerHandler": (
        PeerMultimodalPrefillHandler,
        "multimodal.worker_handler",
    ),
    "StreamProcessor": (PeerStreamProcessor, "multimodal.worker_handler"),
    "MultimodalEncodeWorkerHandler": (
        PeerEncodeHandler,
        "multimodal.encode_worker_handler",
    ),
    "DecodeWorkerHandler": (PeerDecodeHandler, "llm.decode_handler"),
    "PrefillWorkerHandler": (PeerPrefillHandler, "llm.prefill_handler"),
}
"""What the tests import -> what they get, and the module they import it from."""


def rebind() -> None:
    """Have the tests import our classes where they ask for the incumbent's."""
    package = "dynamo.sglang.request_handlers"
    for name, (peer_class, module) in REBOUND.items():
        setattr(importlib.import_module(package), name, peer_class)
        folder, _, _ = module.partition(".")
        for place in (folder, module):
            setattr(importlib.import_module(f"{package}.{place}"), name, peer_class)
    abort._look = _tell_polling(abort._look)


def _tell_polling(look: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The tests learn from a patched ``asyncio.sleep`` that an abort is waiting; ours may not poll.

    So the adapter calls that ``sleep`` once per wait.
    """

    async def told(flight: Any, condition: Callable[[], bool]) -> None:
        if not condition():
            await trio_asyncio.aio_as_trio(cancellation.asyncio.sleep)(0)
        await look(flight, condition)

    return told


def run_test(function: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    """Run one coroutine test on the worker's loop; its own exception comes out bare."""
    trio.run(_run_test, function, arguments)


async def _run_test(function: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    global stage
    failure: BaseException | None = None
    async with open_loop() as loop, trio.open_nursery() as aborting:
        async with trio.open_nursery() as serving:
            stage = Stage(loop, serving, aborting, Feeders(loop))
            try:
                await trio_asyncio.aio_as_trio(function)(**arguments)
            except Exception as error:
                failure = error
            serving.cancel_scope.cancel()
        await stage.feeders.close(1.0)
        aborting.cancel_scope.cancel()
    stage = None
    if failure is not None:
        raise failure
