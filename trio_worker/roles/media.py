# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Images and videos (R1, R2): one generation at a time, everything else beside it.

Start-up order is the incumbent's (``dynamo/sglang/init_diffusion.py``). Its handlers run whole,
on a loop of their own (`compat.side_loop`): between fetching, generating and storing they encode
for seconds without an await. A request that ends early leaves at once; a generation that has
begun goes on, owned by the generator's host.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio_asyncio
from dynamo.common.model_taints import register_model_taint_route
from dynamo.common.storage import get_fs
from dynamo.sglang.args import _diffusion_generator_kwargs
from dynamo.sglang.health_check import (
    ImageDiffusionHealthCheckPayload,
    VideoGenerationHealthCheckPayload,
)
from dynamo.sglang.register import (
    register_image_diffusion_model,
    register_video_generation_model,
)
from dynamo.sglang.request_handlers import (
    ImageDiffusionWorkerHandler,
    VideoGenerationWorkerHandler,
)

from compat.generator import AT_WORK, GeneratorHost, Turn, build_generator, open_generator
from compat.host import EngineHost
from compat.loop import WorkerLoop
from compat.runtime import WorkerRuntime
from trio_worker.requests.plan import Plan
from trio_worker.roles import Role
from trio_worker.roles.answer import RequestContext, only, plan_answer
from trio_worker.roles.endpoints import (
    LEASE_PROBE,
    endpoint_name,
    request_facade,
    serve_lease_probe,
)
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)


class MediaRequests:
    """What both handlers' requests share. Mixed in before the incumbent's class."""

    _host: GeneratorHost
    _room: asyncio.Semaphore

    def attach_host(self, host: GeneratorHost) -> None:
        """Trio. Before any request."""
        self._host = host
        self._room = asyncio.Semaphore(AT_WORK)

    async def plan(self, request: dict[str, Any], context: Any) -> Plan:
        """asyncio. Everything is decided, and refused, when the plan is carried out."""

        async def answer(own: RequestContext) -> Any:
            async with self._room:
                return await self._host.side.run(lambda: self._work(request, own))

        return plan_answer(context, answer)

    async def _work(self, request: dict[str, Any], context: RequestContext) -> Any:
        """asyncio, on the side loop. The incumbent's answer; raises what it raises."""
        turn = Turn(self._host)
        try:
            return await only(self.handler_for(turn).answers(request, context))
        finally:
            turn.leave()

    def handler_for(self, turn: Turn) -> Any:
        """This handler, for one request, with `turn` for its generator."""
        handler = copy.copy(self)
        handler.generator = turn  # type: ignore[attr-defined]
        return handler

    def answers(
        self, request: dict[str, Any], context: RequestContext
    ) -> AsyncGenerator[Any, None]:
        """asyncio. The incumbent's ``generate``."""
        raise NotImplementedError


class ImageRequests(MediaRequests, ImageDiffusionWorkerHandler):  # type: ignore[misc]
    """The incumbent's handler, its generator taken in turn."""

    def answers(
        self, request: dict[str, Any], context: RequestContext
    ) -> AsyncGenerator[Any, None]:
        answers: AsyncGenerator[Any, None] = ImageDiffusionWorkerHandler.generate(
            self, request, context
        )
        return answers


class VideoRequests(MediaRequests, VideoGenerationWorkerHandler):  # type: ignore[misc]
    """The incumbent's handler, its generator taken in turn.

    Failures are answers (``status: failed``), as the incumbent's are; the end of a request by its
    client or by the worker is none.
    """

    def handler_for(self, turn: Turn) -> Any:
        handler = super().handler_for(turn)
        # The turn is what makes generations wait. The incumbent's lock is free once its waiter
        # has left, while the thread still runs (B18).
        handler._generate_lock = asyncio.Lock()
        return handler

    def answers(
        self, request: dict[str, Any], context: RequestContext
    ) -> AsyncGenerator[Any, None]:
        answers: AsyncGenerator[Any, None] = VideoGenerationWorkerHandler.generate(
            self, request, context
        )
        return answers


class MediaRole(Role):
    """What both roles share: a generator instead of an engine, no control endpoints."""

    missing_model: str
    """What to say when there is no model."""
    requests: Any
    """The class of the role's requests."""
    canary: Any
    """The class of its health payload: something small."""

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[EngineHost]:
        """Trio. ``DiffGenerator`` for the length of the block.

        Raises ValueError when no model is named.
        """
        server_args = config.server_args
        if not server_args.model_path:
            raise ValueError(self.missing_model)
        arguments = _diffusion_generator_kwargs(server_args)
        return open_generator(loop, lambda: build_generator(arguments))

    async def serve(self, worker: Worker) -> None:
        """Trio. From a built generator to a registered model."""
        config, runtime, host = worker.config, worker.runtime, worker.engine
        assert isinstance(host, GeneratorHost)
        filesystem = await trio_asyncio.aio_as_trio(host.side.run)(
            lambda: _open_filesystem(config.dynamo_args.media_output_fs_url)
        )
        # Both before anything of the runtime runs (see `LlmRole.serve`).
        generate = runtime.endpoint(endpoint_name(config.dynamo_args))
        probe = runtime.endpoint(endpoint_name(config.dynamo_args, LEASE_PROBE))
        handler = self.requests(host.engine, config, publisher=None, fs=filesystem)
        handler.attach_host(host)
        register_model_taint_route(runtime.runtime, generate)
        runtime.serve(
            generate,
            request_facade(worker, handler.plan).generate,
            graceful_shutdown=True,
            metrics_labels=[],
            health_check_payload=self.canary(model_path=config.server_args.model_path).to_dict(),
        )
        serve_lease_probe(runtime, probe)
        await self.register(host, runtime, generate, config)

    async def register(
        self, host: GeneratorHost, runtime: WorkerRuntime, generate: Any, config: Any
    ) -> None:
        """Trio. Announce the model."""
        raise NotImplementedError


class ImageRole(MediaRole):
    """R1."""

    missing_model = "--model is required for diffusion workers"
    requests = ImageRequests
    canary = ImageDiffusionHealthCheckPayload

    async def register(
        self, host: GeneratorHost, runtime: WorkerRuntime, generate: Any, config: Any
    ) -> None:
        """Trio. As images, unless ``--output-modalities`` says more."""
        modalities = config.dynamo_args.output_modalities
        if modalities is None or modalities == ["text"]:
            # The flag's default; the runtime would look for a language model's files.
            modalities = ["image"]
            logger.info("Overriding output_modalities to ['image'] for image diffusion worker")
        await runtime.register(
            lambda: register_image_diffusion_model(
                host.engine, generate, config.server_args, output_modalities=modalities
            )
        )


class VideoRole(MediaRole):
    """R2."""

    missing_model = "--model is required for video generation workers"
    requests = VideoRequests
    canary = VideoGenerationHealthCheckPayload

    async def register(
        self, host: GeneratorHost, runtime: WorkerRuntime, generate: Any, config: Any
    ) -> None:
        """Trio. As videos."""
        await runtime.register(
            lambda: register_video_generation_model(host.engine, generate, config.server_args)
        )


async def _open_filesystem(url: str) -> Any:
    """asyncio, on the side loop: a filesystem may make a loop, which Trio's thread can't have."""
    return get_fs(url)
