# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rerank and embedding (R3, R4): one pooling call, one answer.

Start-up order is the incumbent's (``dynamo/sglang/init_embedding.py``). A request that ends early
has its engine call cancelled: SGLang then aborts what it has dispatched of the batch, each part
once, and drops the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import trio_asyncio
from dynamo.common.model_taints import register_model_taint_route
from dynamo.common.utils.prometheus import register_engine_metrics_callback
from dynamo.llm import ModelInput, ModelType, WorkerType
from dynamo.sglang.health_check import (
    SglangEmbeddingHealthCheckPayload,
    SglangRerankHealthCheckPayload,
)
from dynamo.sglang.publisher import setup_sgl_metrics
from dynamo.sglang.register import register_model_with_readiness_gate
from dynamo.sglang.request_handlers import EmbeddingWorkerHandler, RerankWorkerHandler
from dynamo.sglang.request_handlers.embedding.metrics import init_embedding_metrics

from trio_worker.requests.plan import Plan
from trio_worker.roles.answer import RequestContext, only, plan_answer
from trio_worker.roles.endpoints import (
    LEASE_PROBE,
    endpoint_name,
    request_facade,
    serve_lease_probe,
)
from trio_worker.roles.llm import SglangRole
from trio_worker.worker import Worker


class _RunToItsEnd:
    """One call of ``generate_request``, asked for its first answer."""

    def __init__(self, answers: AsyncGenerator[Any, None]) -> None:
        self._answers = answers

    def __aiter__(self) -> _RunToItsEnd:
        return self

    async def __anext__(self) -> Any:
        return await only(self._answers)


class _PoolingManager:
    """SGLang's tokenizer manager, whose pooling calls leave nothing open.

    The incumbent takes the first answer and lets go of the generator. Until it is collected, that
    holds SGLang's reader lock, and with it pauses and weight updates.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def generate_request(self, obj: Any, request: Any = None) -> _RunToItsEnd:
        return _RunToItsEnd(self._manager.generate_request(obj, request))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _PoolingEngine:
    """SGLang's engine around a `_PoolingManager`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.tokenizer_manager = _PoolingManager(engine.tokenizer_manager)
        encode = getattr(type(engine), "async_encode", None)
        if inspect.iscoroutinefunction(encode):
            # SGLang's own method, upon ours: it reaches for the tokenizer manager.
            self.async_encode = encode.__get__(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class EmbeddingRequests(EmbeddingWorkerHandler):  # type: ignore[misc]  # Dynamo has no types
    """The incumbent's handler under a rid of ours."""

    def __init__(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(_PoolingEngine(engine), *args, **kwargs)

    async def plan(self, request: dict[str, Any], context: Any) -> Plan:
        """asyncio. Everything is decided, and refused, when the plan is carried out."""

        async def answer(own: RequestContext) -> Any:
            return await only(super(EmbeddingRequests, self).generate(request, own))

        return plan_answer(context, answer)


class RerankRequests(RerankWorkerHandler):  # type: ignore[misc]  # Dynamo has no types
    """The incumbent's handler under a rid of ours. Raises ValueError for a decoder reranker."""

    def __init__(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(_PoolingEngine(engine), *args, **kwargs)

    async def plan(self, request: dict[str, Any], context: Any) -> Plan:
        """asyncio. Everything is decided, and refused, when the plan is carried out."""

        async def answer(own: RequestContext) -> Any:
            return await only(super(RerankRequests, self).generate(request, own))

        return plan_answer(context, answer)


class PoolingRole(SglangRole):
    """What rerank and embedding share: no publisher, no control endpoints."""

    output_type: Any
    """``ModelType`` to register."""

    async def serve(self, worker: Worker) -> None:
        """Trio. From a built engine to a registered model."""
        config, runtime = worker.config, worker.runtime
        dynamo_args = config.dynamo_args
        # Both before anything of the runtime runs (see `LlmRole.serve`).
        generate = runtime.endpoint(endpoint_name(dynamo_args))
        probe = runtime.endpoint(endpoint_name(dynamo_args, LEASE_PROBE))
        publisher, idle, labels = await trio_asyncio.aio_as_trio(setup_sgl_metrics)(
            worker.engine.engine, config, generate
        )
        idle.cancel()  # C16: it only waits, for somebody to cancel it
        self.open_metrics(worker, generate)
        handler = self.make_handler(worker, publisher)
        payload = self.health_payload(worker)
        register_model_taint_route(runtime.runtime, generate)
        runtime.serve(
            generate,
            request_facade(worker, handler.plan).generate,
            graceful_shutdown=True,
            metrics_labels=labels,
            health_check_payload=payload,
        )
        serve_lease_probe(runtime, probe)
        await runtime.register(
            lambda: register_model_with_readiness_gate(
                worker.engine.engine,
                generate,
                config.server_args,
                dynamo_args,
                input_type=ModelInput.Text,
                output_type=self.output_type,
                worker_type=WorkerType.Aggregated,
                needs=[],
            )
        )

    def open_metrics(self, worker: Worker, generate: Any) -> None:
        """Trio. The role's own metrics, if it has any."""

    def make_handler(self, worker: Worker, publisher: Any) -> Any:
        """Trio. The role's requests."""
        raise NotImplementedError

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """The canary's request."""
        raise NotImplementedError


class EmbeddingRole(PoolingRole):
    """R4."""

    output_type = ModelType.Embedding

    def open_metrics(self, worker: Worker, generate: Any) -> None:
        """Trio. ``dynamo_embedding_*``, in a registry that the worker's ``/metrics`` shows."""
        # SGLang has to set up its own metrics before this is imported: with the engine, that is.
        from prometheus_client import CollectorRegistry

        dynamo_args = worker.config.dynamo_args
        registry = CollectorRegistry()
        register_engine_metrics_callback(
            endpoint=generate,
            registry=registry,
            metric_prefix_filters=["dynamo_embedding_"],
            namespace_name=dynamo_args.namespace,
            component_name=dynamo_args.component,
            endpoint_name=dynamo_args.endpoint,
            model_name=worker.config.server_args.served_model_name,
        )
        init_embedding_metrics(registry)

    def make_handler(self, worker: Worker, publisher: Any) -> EmbeddingRequests:
        """Trio."""
        return EmbeddingRequests(worker.engine.engine, worker.config, publisher, None)

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """A text or a token, as clients will send."""
        payload: dict[str, Any] = SglangEmbeddingHealthCheckPayload(
            _name_of_model(worker.config),
            worker.engine.engine,
            use_text_input=worker.config.dynamo_args.use_sglang_tokenizer,
        ).to_dict()
        return payload


class RerankRole(PoolingRole):
    """R3."""

    output_type = ModelType.Rerank

    def make_handler(self, worker: Worker, publisher: Any) -> RerankRequests:
        """Trio. Raises ValueError for models that only their generation path could serve."""
        return RerankRequests(worker.engine.engine, worker.config, publisher, None)

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """One query, one document."""
        payload: dict[str, Any] = SglangRerankHealthCheckPayload(
            _name_of_model(worker.config)
        ).to_dict()
        return payload


def _name_of_model(config: Any) -> str:
    name: str = config.server_args.served_model_name or config.server_args.model_path
    return name
