# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Multimodal encode (R5), the front door: media become embeddings, another worker answers.

Start-up order is the incumbent's (``dynamo/sglang/init_multimodal.py``).
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio
from dynamo import prometheus_names
from dynamo.common.constants import EmbeddingTransferMode
from dynamo.common.model_taints import register_model_taint_route
from dynamo.common.multimodal import EMBEDDING_SENDER_FACTORIES
from dynamo.common.utils.prometheus import register_embedding_cache_metrics
from dynamo.llm import ModelInput, ModelType, MultimodalEmbeddingCachePublisher, WorkerType
from dynamo.sglang._compat import publish_server_args
from dynamo.sglang.register import register_model_with_readiness_gate
from dynamo.sglang.request_handlers import MultimodalEncodeWorkerHandler

from compat.downstream import Downstream
from compat.encoder import EncoderHost
from compat.handover import Chunk
from compat.host import EngineHost, open_host
from compat.loop import WorkerLoop
from compat.runtime import WorkerRuntime
from trio_worker.requests.plan import Plan
from trio_worker.responses import ForwardedResponses, merge_forwarded
from trio_worker.roles import Role
from trio_worker.roles.embeddings import SentEmbeddings
from trio_worker.roles.endpoints import (
    LEASE_PROBE,
    endpoint_name,
    request_facade,
    serve_lease_probe,
)
from trio_worker.roles.submission import NoChunks
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)

_SAID_ONCE = ("_missing_video_cache_key_config_warned", "_decoded_content_hash_warning_emitted")
"""What the incumbent's handler remembers to have warned of."""


class EncodeRequests(MultimodalEncodeWorkerHandler):  # type: ignore[misc]  # Dynamo has no types
    """The incumbent's handler with its streaming half taken out.

    Built in a thread without a loop, since encoder and tokenizer take long to load; `connect`, on
    the loop, completes it.
    """

    def __init__(self, config: Any) -> None:
        loopless = copy.copy(config)
        loopless.dynamo_args = copy.copy(config.dynamo_args)
        loopless.dynamo_args.embedding_transfer_mode = EmbeddingTransferMode.LOCAL
        super().__init__(loopless, None, None, None)
        self.config = config

    def connect(self, client: Any, cache_publisher: Any) -> None:
        """Trio. Before anything is served; raises ValueError for an unknown way of transfer.

        A sender may start a task of its own: `EncoderHost` ends it.
        """
        mode = self.config.dynamo_args.embedding_transfer_mode
        sender = EMBEDDING_SENDER_FACTORIES.get(mode)
        if sender is None:
            raise ValueError(f"Invalid embedding transfer mode: {mode}")
        self.embedding_sender = sender()
        self.pd_worker_client = client
        self._cache_publisher = cache_publisher

    async def plan(self, request: Any, context: Any) -> Plan:
        """asyncio. Encode, and offer the embeddings; the other worker is asked afterwards."""
        sent = SentEmbeddings(self.embedding_sender)
        payloads = _Payloads()
        planner = copy.copy(self)
        planner.embedding_sender = sent
        planner.pd_worker_client = payloads
        try:
            async for _ in super(EncodeRequests, planner).generate(request, context):
                raise AssertionError("an answer without a question")
        except BaseException:
            await sent.release()
            raise
        finally:
            for name in _SAID_ONCE:
                if getattr(planner, name, False):
                    setattr(self, name, True)
        call = Downstream(self.pd_worker_client, context)
        (payload,) = payloads.noted

        async def submit() -> AsyncIterator[Chunk]:
            return _Decoded(await call.round_robin(payload))

        async def release() -> None:
            call.close()
            await sent.release()

        options = (json.loads(request) if isinstance(request, str) else request)["sampling_options"]
        return Plan(
            engine_rid=context.id(),
            ordered=False,
            submit=submit,
            responses=ForwardedResponses(choices=options.get("n") or 1),
            merge=merge_forwarded,
            release=release,
        )


class _Payloads:
    """Dynamo's client as a request sees it while it is planned: the question is noted."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    async def round_robin(self, payload: str, context: Any = None) -> AsyncIterator[Any]:
        self.noted.append(payload)
        return NoChunks()


class _Decoded:
    """What the other worker answers, out of its envelopes."""

    def __init__(self, answers: AsyncIterator[Any]) -> None:
        self._answers = answers

    def __aiter__(self) -> _Decoded:
        return self

    async def __anext__(self) -> Chunk:
        item = await anext(self._answers)
        content = item.data() if hasattr(item, "data") else str(item)
        if not isinstance(content, str):
            chunk: Chunk = content
            return chunk
        try:
            chunk = json.loads(content)
        except json.JSONDecodeError:
            logger.warning("Non-JSON response from PD worker: %r", content[:200])
            chunk = {"token_ids": [], "text": content}
        return chunk


class EncodeRole(Role):
    """R5."""

    def prepare(self, config: Any) -> None:
        """Neither flavour. An encoder opens none of an engine's ports."""

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[EngineHost]:
        """Trio. ``MMEncoder``, within its handler, for the length of the block."""

        def build() -> EncodeRequests:
            publish_server_args(config.server_args, role="encoder")
            return EncodeRequests(config)

        return open_host(EncoderHost, loop, build)

    async def serve(self, worker: Worker) -> None:
        """Trio. From a built encoder to a registered model, once somebody can answer."""
        config, runtime = worker.config, worker.runtime
        dynamo_args = config.dynamo_args
        # All before anything of the runtime runs (see `LlmRole.serve`).
        generate = runtime.endpoint(endpoint_name(dynamo_args))
        probe = runtime.endpoint(endpoint_name(dynamo_args, LEASE_PROBE))
        downstream = f"{dynamo_args.namespace}.backend.generate"
        client = await runtime.client(downstream)
        handler = worker.engine.engine
        handler.connect(client, await self._cache_publisher(worker, generate))
        model = config.server_args.served_model_name
        if handler._embedding_cache is not None:
            register_embedding_cache_metrics(
                endpoint=generate,
                cache=handler._embedding_cache,
                model_name=model,
                component_name=dynamo_args.component,
            )
        await runtime.wait_instances(client, downstream)
        register_model_taint_route(runtime.runtime, generate)
        worker.services.start_service(_unhealthy_at_the_end, runtime.runtime)
        runtime.serve(
            generate,
            request_facade(worker, handler.plan).generate,
            graceful_shutdown=True,
            metrics_labels=[
                (prometheus_names.labels.MODEL, model),
                (prometheus_names.labels.MODEL_NAME, model),
            ],
        )
        serve_lease_probe(runtime, probe)
        await runtime.register(
            lambda: register_model_with_readiness_gate(
                None,
                generate,
                config.server_args,
                dynamo_args,
                input_type=ModelInput.Tokens,
                output_type=ModelType.Chat | ModelType.Completions,
                worker_type=WorkerType.Encode,
                needs=[[WorkerType.Prefill, WorkerType.Decode], [WorkerType.Aggregated]],
            )
        )
        # No canary: there is no engine to ask.
        runtime.runtime.set_health_status(True)

    async def _cache_publisher(self, worker: Worker, generate: Any) -> Any:
        """Trio. Who tells routers what the embedding cache holds, if asked for."""
        dynamo_args = worker.config.dynamo_args
        if not (
            dynamo_args.multimodal_embedding_cache_capacity_gb > 0
            and dynamo_args.multimodal_embedding_cache_publisher
        ):
            return None
        publisher = MultimodalEmbeddingCachePublisher()
        await worker.runtime.call(publisher.create_endpoint, generate)
        return publisher


async def _unhealthy_at_the_end(runtime: Any) -> None:
    """Trio. A service: the process is not healthy once it has left."""
    try:
        await trio.sleep_forever()
    finally:
        runtime.set_health_status(False)
