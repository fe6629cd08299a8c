# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Decode, prefill and LLM diffusion (R8-R11): endpoints, services, registration.

Start-up order is the incumbent's (``dynamo/sglang/init_llm.py``, ``init_diffusion.py``).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

import sglang as sgl
import trio
import trio_asyncio
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.endpoint_types import parse_endpoint_types
from dynamo.llm import ModelInput, ModelType, WorkerType
from dynamo.sglang._disagg import warmup_prefill_engine
from dynamo.sglang.health_check import (
    SglangDisaggHealthCheckPayload,
    SglangHealthCheckPayload,
    SglangPrefillHealthCheckPayload,
)
from dynamo.sglang.publisher import set_forward_pass_metrics_worker_id, setup_sgl_metrics
from dynamo.sglang.register import register_model_with_readiness_gate
from sglang.srt.observability.trace import set_global_trace_level

from compat.engine import SglangEngine
from compat.host import Host, open_host
from compat.loop import WorkerLoop
from compat.runtime import WorkerRuntime
from trio_worker.roles import Role
from trio_worker.roles.decode import DecodeRequests
from trio_worker.roles.diffusion import DiffusionRequests
from trio_worker.roles.endpoints import (
    LEASE_PROBE,
    endpoint_name,
    request_facade,
    serve_lease_probe,
)
from trio_worker.roles.prefill import PrefillRequests
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)

PUBLISHER_STOP_S = 0.5
"""Seconds that closing the metrics publisher waits for its asyncio task."""

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 10.0
"""Seconds between two errors of the metrics socket, doubling."""

CONTROL_ENDPOINTS = ("load_lora", "unload_lora", "list_loras", "clear_kv_blocks")
"""Each is served by the handler's method of that name."""


class SglangRole(Role):
    """A role on an ``sgl.Engine`` of its own."""

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[SglangEngine]:
        """Trio. ``sgl.Engine`` for the length of the block."""
        return open_sglang(loop, config, runtime)


class LlmRole(SglangRole):
    """What decode and prefill share: one generate endpoint, four control endpoints."""

    control_endpoints: tuple[str, ...] = CONTROL_ENDPOINTS

    async def serve(self, worker: Worker) -> None:
        """Trio. From a built engine to a registered model."""
        config, runtime = worker.config, worker.runtime
        dynamo_args = config.dynamo_args
        # All of them before anything of the runtime runs: with NATS, making one blocks in Rust with
        # the GIL held, on threads that may just wait for the GIL.
        generate = runtime.endpoint(endpoint_name(dynamo_args))
        controls = {
            name: runtime.endpoint(endpoint_name(dynamo_args, name))
            for name in self.control_endpoints
        }
        probe = None if controls else runtime.endpoint(endpoint_name(dynamo_args, LEASE_PROBE))
        if config.server_args.enable_trace:
            set_global_trace_level(dynamo_args.sglang_trace_level)
        publisher, labels = await open_publisher(worker, generate)

        handler = await self.make_handler(worker, publisher, generate)
        handler.tap = worker.engine.is_tapped
        handler.attach(worker)
        handler.register_engine_routes(runtime.runtime)
        handler.follow_shared_pause_state()
        runtime.serve(
            generate,
            request_facade(worker, handler.plan).generate,
            graceful_shutdown=True,
            metrics_labels=labels,
            health_check_payload=self.health_payload(worker),
        )
        for name, endpoint in controls.items():
            runtime.serve(endpoint, getattr(handler, name), metrics_labels=labels)
        if probe is not None:
            serve_lease_probe(runtime, probe)
        await runtime.register(
            lambda: register_model_with_readiness_gate(
                worker.engine.engine,
                generate,
                config.server_args,
                dynamo_args,
                serves_lora_load="load_lora" in controls,
                **self.registration(config),
            )
        )
        # Who was paused meanwhile hides now.
        handler.discovery.poke()

    async def make_handler(self, worker: Worker, publisher: Any, generate: Any) -> Any:
        """Trio. The role's requests and control calls."""
        raise NotImplementedError

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """The canary's request."""
        raise NotImplementedError

    def registration(self, config: Any) -> dict[str, Any]:
        """How the model is announced: surface, worker type, needed peers."""
        raise NotImplementedError


class DecodeRole(LlmRole):
    """R9 and R10."""

    async def make_handler(self, worker: Worker, publisher: Any, generate: Any) -> DecodeRequests:
        """Trio. With the source of the router's first-token notices."""
        config = worker.config
        dynamo_args = config.dynamo_args
        first_token_source = await worker.runtime.call(
            generate.first_token_source, self.registration(config)["worker_type"]
        )
        logger.info("Registering model with endpoint types: %s", dynamo_args.endpoint_types)
        if dynamo_args.custom_jinja_template and "chat" not in dynamo_args.endpoint_types:
            logger.warning(
                "Custom Jinja template provided (--custom-jinja-template) but 'chat' not in "
                "--dyn-endpoint-types. The chat template will be loaded but the "
                "/v1/chat/completions endpoint will not be available."
            )
        return DecodeRequests(
            worker.engine.engine,
            config,
            publisher,
            generate,
            None,
            enable_frontend_decoding=dynamo_args.frontend_decoding,
            first_token_source=first_token_source,
        )

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """Disaggregated, it needs a bootstrap host."""
        kind = (
            SglangDisaggHealthCheckPayload
            if worker.config.serving_mode == DisaggregationMode.DECODE
            else SglangHealthCheckPayload
        )
        payload: dict[str, Any] = kind(
            worker.engine.engine, use_text_input=worker.config.dynamo_args.use_sglang_tokenizer
        ).to_dict()
        return payload

    def registration(self, config: Any) -> dict[str, Any]:
        """Chat and completions, as ``--endpoint-types`` says."""
        disaggregated = config.serving_mode == DisaggregationMode.DECODE
        return {
            "output_type": parse_endpoint_types(config.dynamo_args.endpoint_types),
            "worker_type": WorkerType.Decode if disaggregated else WorkerType.Aggregated,
            "needs": [[WorkerType.Prefill]] if disaggregated else [],
        }


class DiffusionRole(LlmRole):
    """R8."""

    control_endpoints = ()

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[SglangEngine]:
        """Trio. ``sgl.Engine``, which knows the algorithm, for the length of the block."""
        server_args = config.server_args
        logger.info("Initializing diffusion worker with algorithm: %s", server_args.dllm_algorithm)
        if server_args.dllm_algorithm_config:
            logger.info("Using diffusion algorithm config: %s", server_args.dllm_algorithm_config)
        return super().open_engine(loop, config, runtime)

    async def make_handler(
        self, worker: Worker, publisher: Any, generate: Any
    ) -> DiffusionRequests:
        """Trio. Without a source of first-token notices: no prefill worker waits for them."""
        logger.info(
            "Registering diffusion model with endpoint types: %s",
            worker.config.dynamo_args.endpoint_types,
        )
        return DiffusionRequests(worker.engine.engine, worker.config, publisher, generate, None)

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """As for an aggregated worker."""
        payload: dict[str, Any] = SglangHealthCheckPayload(
            worker.engine.engine, use_text_input=worker.config.dynamo_args.use_sglang_tokenizer
        ).to_dict()
        return payload

    def registration(self, config: Any) -> dict[str, Any]:
        """Aggregated; chat and completions, as ``--endpoint-types`` says."""
        return {
            "output_type": parse_endpoint_types(config.dynamo_args.endpoint_types),
            "worker_type": WorkerType.Aggregated,
            "needs": [],
        }


class PrefillRole(LlmRole):
    """R11."""

    async def make_handler(self, worker: Worker, publisher: Any, generate: Any) -> PrefillRequests:
        """Trio. After the warm-up: an unwarmed prefill silently drops requests.

        Raises RuntimeError when the warm-up fails or takes longer than Dynamo gives it (1,800 s).
        """
        engine = worker.engine.engine
        port = worker.config.server_args.disaggregation_bootstrap_port
        try:
            await trio_asyncio.aio_as_trio(warmup_prefill_engine)(engine, port)
        except TimeoutError as error:
            raise RuntimeError("Prefill warmup timed out; worker cannot serve requests") from error
        except Exception as error:
            raise RuntimeError(f"Prefill warmup failed: {error}") from error
        return PrefillRequests(engine, worker.config, publisher, generate, None)

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """With the fake bootstrap host."""
        payload: dict[str, Any] = SglangPrefillHealthCheckPayload(worker.engine.engine).to_dict()
        return payload

    def registration(self, config: Any) -> dict[str, Any]:
        """No OpenAI surface; the legacy marker bit is for frontends that look for it."""
        return {
            "input_type": ModelInput.Tokens,
            "output_type": ModelType.Prefill,
            "worker_type": WorkerType.Prefill,
            "needs": [[WorkerType.Decode]],
        }


def open_sglang(
    loop: WorkerLoop, config: Any, runtime: WorkerRuntime
) -> AbstractAsyncContextManager[SglangEngine]:
    """Trio. ``sgl.Engine`` as `config` says, for the length of the block."""
    return open_sglang_as(SglangEngine, loop, config, runtime)


def llm_role(config: Any) -> LlmRole:
    """Decode or prefill, as the flags say."""
    return PrefillRole() if config.serving_mode == DisaggregationMode.PREFILL else DecodeRole()


def open_sglang_as(
    host_class: type[Host], loop: WorkerLoop, config: Any, runtime: WorkerRuntime
) -> AbstractAsyncContextManager[Host]:
    """Trio. The same, seen as `host_class`."""
    server_args = config.server_args
    set_forward_pass_metrics_worker_id(
        server_args, runtime.endpoint(endpoint_name(config.dynamo_args))
    )
    return open_host(host_class, loop, lambda: sgl.Engine(server_args=server_args))


async def open_publisher(worker: Worker, generate: Any) -> tuple[Any, Any]:
    """Trio. Metrics and KV events of this engine; closed with the services.

    Returns ``(DynamoSglangPublisher, metrics labels)``.
    """
    publisher, task, labels = await trio_asyncio.aio_as_trio(setup_sgl_metrics)(
        worker.engine.engine, worker.config, generate
    )
    if publisher._sock is not None:
        publisher._sock = PatientSocket(publisher._sock)
    worker.services.start_service(_keep_publisher, publisher, task)
    if worker.engine.load_seconds is not None:
        publisher.component_gauges.set_model_load_time(worker.engine.load_seconds)
    return publisher, labels


class PatientSocket:
    """The metrics socket: an error is raised after a pause, which grows while errors go on.

    Dynamo's loop logs an error and receives again at once; one that stays would keep the event
    loop from anything else (defect B22).
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._failures = 0

    async def recv_pyobj(self) -> Any:
        """asyncio. The next message; raises what the socket raises, later."""
        try:
            message = await self._socket.recv_pyobj()
        except Exception:
            await asyncio.sleep(min(PAUSE_FIRST_S * 2**self._failures, PAUSE_MAX_S))
            self._failures = min(self._failures + 1, 10)
            raise
        self._failures = 0
        return message

    def close(self, linger: int) -> None:
        """Trio or asyncio. As the socket's."""
        self._socket.close(linger=linger)


async def _keep_publisher(publisher: Any, task: asyncio.Task[None]) -> None:
    """Trio. A service: Dynamo's publisher until cancelled; its task is joined within a bound."""
    ended = trio.Event()
    task.add_done_callback(lambda _task: ended.set())
    try:
        await ended.wait()
    finally:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Metrics are no longer published: %r", error)
        with trio.CancelScope(shield=True), trio.move_on_after(PUBLISHER_STOP_S):
            task.cancel()
            await ended.wait()
        logger.info("Metrics task successfully cancelled")
        publisher.cleanup()
