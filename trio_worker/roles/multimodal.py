# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Multimodal workers behind an encode worker (R6, R7): embeddings in, JSON texts out.

Errors of a request are told in its stream, as the incumbent does it; what asks for a migration,
or comes from another worker, is raised as it is (defect B19).
"""

from __future__ import annotations

import copy
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from dynamo.common.constants import DisaggregationMode
from dynamo.common.model_taints import register_model_taint_route
from dynamo.llm import ModelInput, ModelType, WorkerType
from dynamo.llm.exceptions import DynamoException, HttpError
from dynamo.sglang._disagg import validate_disagg_parallel_sampling
from dynamo.sglang.engine_generate import new_sglang_request_id
from dynamo.sglang.health_check import (
    SglangDisaggHealthCheckPayload,
    SglangHealthCheckPayload,
    SglangPrefillHealthCheckPayload,
)
from dynamo.sglang.register import register_model_with_readiness_gate
from dynamo.sglang.request_handlers import (
    MultimodalPrefillWorkerHandler,
    MultimodalWorkerHandler,
)
from dynamo.sglang.request_handlers.llm.decode_handler import _ordered_cancellation_request_id

from compat.downstream import Downstream
from compat.handover import Chunk
from trio_worker.requests.backlog import merge_by_stream
from trio_worker.requests.plan import Plan
from trio_worker.responses import (
    MultimodalPrefillResponses,
    MultimodalResponses,
    Responses,
    error_text,
)
from trio_worker.roles.answer import RequestContext
from trio_worker.roles.embeddings import ReceivedEmbeddings
from trio_worker.roles.endpoints import (
    LEASE_PROBE,
    endpoint_name,
    request_facade,
    serve_lease_probe,
)
from trio_worker.roles.llm import SglangRole
from trio_worker.roles.submission import EngineRecorder, Submission, SubmissionRecorder
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)


class MultimodalRequests(MultimodalWorkerHandler):  # type: ignore[misc]  # Dynamo has no types
    """R6. The incumbent's handler with its streaming half taken out."""

    tap: bool = True

    @functools.cached_property
    def _recorder(self) -> SubmissionRecorder:
        return SubmissionRecorder(self.engine)

    async def plan(self, request: Any, context: Any) -> Plan:
        """asyncio. Receive embeddings, or a prefill worker's bootstrap info; decide the rest.

        Raises ``InvalidArgument``, and what the prefill worker failed with.
        """
        rid = new_sglang_request_id()
        embeddings = ReceivedEmbeddings(self.embeddings_processor)
        prefill = Downstream(self.prefill_client, context)
        planner = copy.copy(self)
        planner.engine = self._recorder
        planner.embeddings_processor = embeddings
        planner.prefill_client = prefill
        try:
            # Run to its end: nothing comes out of it but an error.
            told = [
                text
                async for text in super(MultimodalRequests, planner).generate(
                    request, RequestContext(context, rid)
                )
            ]
            if prefill.error is not None:
                raise prefill.error
        except BaseException:
            self._recorder.take(rid)
            embeddings.release()
            prefill.close()
            raise
        submission = self._recorder.take(rid)
        if submission is None:
            embeddings.release()
            prefill.close()
            return _nothing_but(told)

        async def release() -> None:
            embeddings.release()
            prefill.close()

        return Plan(
            engine_rid=rid,
            ordered=_is_ordered(self, submission),
            submit=submission.submit,
            responses=MultimodalResponses(
                choices=submission.choices, notify_first_token=embeddings.release
            ),
            merge=merge_by_stream,
            tapped=self.tap,
            choices=submission.choices,
            in_band=_told(error_text, "stream processing"),
            release=release,
        )


class MultimodalPrefillRequests(MultimodalPrefillWorkerHandler):  # type: ignore[misc]
    """R7. The incumbent's parts, around a stream that the request's own task consumes (B20)."""

    tap: bool = True

    @functools.cached_property
    def _recorder(self) -> EngineRecorder:
        return EngineRecorder(self.engine)

    async def plan(self, request: Any, context: Any) -> Plan:
        """asyncio. Receive embeddings and decide the rest; raises ``InvalidArgument``.

        The bootstrap info goes out once SGLang holds the request: a decode worker that has it waits
        for a prefill (rule 86).
        """
        embeddings = ReceivedEmbeddings(self.embeddings_processor)
        planner = copy.copy(self)
        planner.engine = self._recorder
        planner.embeddings_processor = embeddings
        fields: dict[str, Any] = {}
        try:
            disagg_request = self._validate_and_parse_disagg_request(request)
            validate_disagg_parallel_sampling({"sampling_params": disagg_request.sampling_params})
            room = fields["bootstrap_room"] = self._generate_bootstrap_room()
            rid = new_sglang_request_id()
            submission, _ = await planner._start_prefill_generation(
                disagg_request, room, rid=rid, context=context
            )
        except Exception as error:
            embeddings.release()
            text = _told(error_text, "prefill generation", **fields)(error)
            if text is None:
                raise
            return _nothing_but([text])
        except BaseException:
            embeddings.release()
            raise
        in_band = _told(error_text, "prefill generation", **fields)
        responses = MultimodalPrefillResponses(embeddings.release)

        def closing() -> str | None:
            if responses.answered:
                return None
            return in_band(RuntimeError("SGLang prefill stream ended before producing a result"))

        return Plan(
            engine_rid=rid,
            ordered=_is_ordered(self, submission),
            submit=submission.submit,
            responses=responses,
            merge=merge_by_stream,
            tapped=self.tap,
            opening=json.dumps(
                {
                    "bootstrap_host": self.bootstrap_host,
                    "bootstrap_port": self.bootstrap_port,
                    "bootstrap_room": room,
                }
            ),
            opening_waits=True,
            closing=closing,
            in_band=in_band,
            release=embeddings.release_at_end,
        )


class _NoResponses(Responses):
    """Of a request that has had its only response."""

    __slots__ = ()


def _nothing_but(texts: list[str]) -> Plan:
    """A request that is refused in its stream: nothing is submitted."""

    async def submit() -> AsyncIterator[Chunk]:
        return _empty()

    return Plan(
        engine_rid="none",
        ordered=False,
        submit=submit,
        responses=_NoResponses(choices=0),
        merge=merge_by_stream,
        opening=texts[0] if texts else None,
    )


async def _empty() -> AsyncIterator[Chunk]:
    return
    yield  # makes this an async generator


def _told(text: Callable[..., str], where: str, **fields: Any) -> Callable[[Exception], str | None]:
    """``tell(error)``: how a stream tells of an error; None for those that have a type."""

    def tell(error: Exception) -> str | None:
        if isinstance(error, DynamoException | HttpError):
            return None
        logger.error("Error in %s: %s", where, error, exc_info=error)
        return text(error, **fields)

    return tell


def _is_ordered(handler: Any, submission: Submission) -> bool:
    return (
        _ordered_cancellation_request_id(
            submission.kwargs["rid"],
            submission.kwargs["sampling_params"],
            supported=handler._supports_ordered_cancellation,
        )
        is not None
    )


class _InternalRole(SglangRole):
    """What R6 and R7 share: reached through other workers, never by the frontend."""

    async def serve(self, worker: Worker) -> None:
        """Trio. From a built engine to a registered topology card."""
        config, runtime = worker.config, worker.runtime
        # All before anything of the runtime runs (see `LlmRole.serve`).
        generate = runtime.endpoint(endpoint_name(config.dynamo_args))
        probe = runtime.endpoint(endpoint_name(config.dynamo_args, LEASE_PROBE))
        handler = await self.make_handler(worker)
        handler.tap = worker.engine.is_tapped
        register_model_taint_route(runtime.runtime, generate)
        runtime.serve(
            generate,
            request_facade(worker, handler.plan).generate,
            graceful_shutdown=True,
            metrics_labels=[("model", config.server_args.served_model_name)],
            health_check_payload=self.health_payload(worker),
        )
        serve_lease_probe(runtime, probe)
        await runtime.register(
            lambda: register_model_with_readiness_gate(
                worker.engine.engine,
                generate,
                config.server_args,
                config.dynamo_args,
                input_type=ModelInput.Tokens,
                # No OpenAI surface: a card that the readiness gate counts.
                output_type=ModelType.Empty,
                **self.topology(config),
            )
        )

    async def make_handler(self, worker: Worker) -> Any:
        """Trio. The role's requests."""
        raise NotImplementedError

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """The canary's request."""
        raise NotImplementedError

    def topology(self, config: Any) -> dict[str, Any]:
        """Worker type and needed peers."""
        raise NotImplementedError


class MultimodalRole(_InternalRole):
    """R6."""

    async def make_handler(self, worker: Worker) -> MultimodalRequests:
        """Trio. A decode worker asks a prefill worker first."""
        config, runtime = worker.config, worker.runtime
        prefill_client = None
        if config.serving_mode == DisaggregationMode.DECODE:
            logger.info("Initializing prefill client for multimodal decode worker")
            prefill_client = await runtime.client(
                f"{config.dynamo_args.namespace}.prefill.generate"
            )
        return MultimodalRequests(worker.engine.engine, config, prefill_client, None)

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """Disaggregated, it needs a bootstrap host."""
        disaggregated = worker.config.serving_mode == DisaggregationMode.DECODE
        kind = SglangDisaggHealthCheckPayload if disaggregated else SglangHealthCheckPayload
        payload: dict[str, Any] = kind(worker.engine.engine).to_dict()
        return payload

    def topology(self, config: Any) -> dict[str, Any]:
        """Decode behind a prefill worker, or all of it behind an encode worker."""
        if config.serving_mode == DisaggregationMode.DECODE:
            return {"worker_type": WorkerType.Decode, "needs": [[WorkerType.Prefill]]}
        return {"worker_type": WorkerType.Aggregated, "needs": [[WorkerType.Encode]]}


class MultimodalPrefillRole(_InternalRole):
    """R7."""

    async def make_handler(self, worker: Worker) -> MultimodalPrefillRequests:
        """Trio."""
        return MultimodalPrefillRequests(worker.engine.engine, worker.config, None)

    def health_payload(self, worker: Worker) -> dict[str, Any]:
        """With the fake bootstrap host."""
        payload: dict[str, Any] = SglangPrefillHealthCheckPayload(worker.engine.engine).to_dict()
        return payload

    def topology(self, config: Any) -> dict[str, Any]:
        """Half of a pair."""
        return {"worker_type": WorkerType.Prefill, "needs": [[WorkerType.Decode]]}
