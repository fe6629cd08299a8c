# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Aggregated and disaggregated decode (R9, R10): endpoints, services, registration.

Start-up order is the incumbent's (``dynamo/sglang/init_llm.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import sglang as sgl
import trio
import trio_asyncio
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.endpoint_types import parse_endpoint_types
from dynamo.llm import WorkerType
from dynamo.sglang.health_check import (
    SglangDisaggHealthCheckPayload,
    SglangHealthCheckPayload,
)
from dynamo.sglang.publisher import set_forward_pass_metrics_worker_id, setup_sgl_metrics
from dynamo.sglang.register import register_model_with_readiness_gate
from sglang.srt.observability.trace import set_global_trace_level

from compat.facade import Facade
from compat.runtime import WorkerRuntime
from trio_worker import constants
from trio_worker.roles.decode import DecodeRequests
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)

PUBLISHER_STOP_S = 0.5
"""Seconds that closing the metrics publisher waits for its asyncio task."""


class DecodeRole:
    """R9 and R10."""

    def engine_builder(self, config: Any, runtime: WorkerRuntime) -> Callable[[], Any]:
        """Trio. Builds ``sgl.Engine``."""
        server_args = config.server_args
        set_forward_pass_metrics_worker_id(
            server_args, runtime.endpoint(endpoint_name(config.dynamo_args))
        )
        return lambda: sgl.Engine(server_args=server_args)

    async def serve(self, worker: Worker) -> None:
        """Trio. From a built engine to a registered model."""
        config, runtime, engine = worker.config, worker.runtime, worker.engine
        server_args, dynamo_args = config.server_args, config.dynamo_args
        generate = runtime.endpoint(endpoint_name(dynamo_args))
        if server_args.enable_trace:
            set_global_trace_level(dynamo_args.sglang_trace_level)

        publisher, labels = await open_publisher(worker, generate)
        publisher.component_gauges.set_model_load_time(engine.load_seconds)

        worker_type, needs = topology(config)
        first_token_source = await runtime.call(generate.first_token_source, worker_type)
        handler = DecodeRequests(
            engine.engine,
            config,
            publisher,
            generate,
            None,
            enable_frontend_decoding=dynamo_args.frontend_decoding,
            first_token_source=first_token_source,
        )
        handler.attach_runtime(runtime)
        handler.register_engine_routes(runtime.runtime)
        facade = Facade(
            lambda request, context, egress: worker.requests.admit(
                context, egress, lambda: handler.plan(request, context)
            ),
            worker.senders,
            constants.EGRESS_BACKLOG_FRAMES,
        )
        payload = health_payload(config, engine.engine)
        logger.info("Registering model with endpoint types: %s", dynamo_args.endpoint_types)
        if dynamo_args.custom_jinja_template and "chat" not in dynamo_args.endpoint_types:
            logger.warning(
                "Custom Jinja template provided (--custom-jinja-template) but 'chat' not in "
                "--dyn-endpoint-types. The chat template will be loaded but the "
                "/v1/chat/completions endpoint will not be available."
            )
        runtime.serve(
            generate,
            facade.generate,
            graceful_shutdown=True,
            metrics_labels=labels,
            health_check_payload=payload,
        )
        for name, call in (
            ("load_lora", handler.load_lora),
            ("unload_lora", handler.unload_lora),
            ("list_loras", handler.list_loras),
            ("clear_kv_blocks", handler.clear_kv_blocks),
        ):
            runtime.serve(
                runtime.endpoint(endpoint_name(dynamo_args, name)), call, metrics_labels=labels
            )
        await runtime.register(
            lambda: register_model_with_readiness_gate(
                engine.engine,
                generate,
                server_args,
                dynamo_args,
                output_type=parse_endpoint_types(dynamo_args.endpoint_types),
                worker_type=worker_type,
                needs=needs,
                serves_lora_load=True,
            )
        )


def endpoint_name(dynamo_args: Any, endpoint: str | None = None) -> str:
    """``namespace.component.endpoint``; default: the role's generate endpoint."""
    return f"{dynamo_args.namespace}.{dynamo_args.component}.{endpoint or dynamo_args.endpoint}"


def topology(config: Any) -> tuple[Any, list[list[Any]]]:
    """Worker type and the peers that it needs."""
    if config.serving_mode == DisaggregationMode.DECODE:
        return WorkerType.Decode, [[WorkerType.Prefill]]
    return WorkerType.Aggregated, []


def health_payload(config: Any, engine: Any) -> dict[str, Any]:
    """The canary's request."""
    kind = (
        SglangDisaggHealthCheckPayload
        if config.serving_mode == DisaggregationMode.DECODE
        else SglangHealthCheckPayload
    )
    payload: dict[str, Any] = kind(
        engine, use_text_input=config.dynamo_args.use_sglang_tokenizer
    ).to_dict()
    return payload


async def open_publisher(worker: Worker, generate: Any) -> tuple[Any, Any]:
    """Trio. Metrics and KV events of this engine; closed with the services.

    Returns ``(DynamoSglangPublisher, metrics labels)``.
    """
    publisher, task, labels = await trio_asyncio.aio_as_trio(setup_sgl_metrics)(
        worker.engine.engine, worker.config, generate
    )
    worker.services.start_service(_keep_publisher, publisher, task)
    return publisher, labels


async def _keep_publisher(publisher: Any, task: asyncio.Task[None]) -> None:
    """Trio. A service: Dynamo's publisher until cancelled; its task is joined within a bound."""
    ended = trio.Event()
    task.add_done_callback(lambda _task: ended.set())
    try:
        await ended.wait()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(PUBLISHER_STOP_S):
            task.cancel()
            await ended.wait()
        logger.info("Metrics task successfully cancelled")
        publisher.cleanup()
