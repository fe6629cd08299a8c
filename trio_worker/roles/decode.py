# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Aggregated and disaggregated decode (R9, R10): what is submitted, and how it is answered."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dynamo.sglang.request_handlers import DecodeWorkerHandler

from trio_worker.requests.backlog import merge_by_stream, merge_native_by_stream
from trio_worker.requests.plan import Plan
from trio_worker.responses import NativeResponses, TextResponses, TokenResponses
from trio_worker.roles.control import Control
from trio_worker.roles.submission import (
    EngineRecorder,
    NativeSubmission,
    Submission,
    native_choices,
)


class DecodeRequests(Control, DecodeWorkerHandler):  # type: ignore[misc]
    """The incumbent's handler with its streaming half taken out."""

    tap: bool = True

    async def plan(self, request: dict[str, Any], context: Any) -> Plan:
        """asyncio. Decide everything about `request`; raises what the incumbent raises."""
        planner = copy.copy(self)
        planner.engine = self._recorder
        # Run to its end: a generator left half-way would be closed by a task of its own.
        plans = [plan async for plan in super(DecodeRequests, planner).generate(request, context)]
        plan: Plan = plans[0]
        return plan

    @functools.cached_property
    def _recorder(self) -> EngineRecorder:
        return EngineRecorder(self.engine)

    async def _process_token_stream(
        self,
        stream_source: Submission,
        context: Any,
        return_tokens_as_token_ids: bool = False,
        user_stop_token_ids: set[int] | None = None,
        metadata_uploader: Any = None,
        submitted_request_id: str | None = None,
        report_kv_cache_hit: bool = True,
    ) -> AsyncIterator[Plan]:
        """asyncio. The incumbent is about to stream token ids."""
        kwargs = stream_source.kwargs
        yield Plan(
            engine_rid=kwargs["rid"],
            ordered=submitted_request_id is not None,
            submit=stream_source.submit,
            responses=TokenResponses(
                choices=stream_source.choices,
                wants_logprobs=bool(kwargs.get("return_logprob")),
                return_tokens_as_token_ids=return_tokens_as_token_ids,
                user_stop_token_ids=user_stop_token_ids,
                report_kv_cache_hit=report_kv_cache_hit and self._reports_kv_cache_hit,
                uploads=metadata_uploader is not None,
                notify_first_token=context.notify_first_token,
            ),
            merge=merge_by_stream,
            tapped=self.tap,
            choices=stream_source.choices,
            uploader=metadata_uploader,
        )

    async def _process_text_stream(
        self,
        stream_source: Submission,
        context: Any,
        request: dict[str, Any] | None = None,
        user_stop_token_ids: set[int] | None = None,
        metadata_uploader: Any = None,
        submitted_request_id: str | None = None,
    ) -> AsyncIterator[Plan]:
        """asyncio. The incumbent is about to stream text."""
        yield Plan(
            engine_rid=stream_source.kwargs["rid"],
            ordered=submitted_request_id is not None,
            submit=stream_source.submit,
            responses=TextResponses(
                context_id=context.id(),
                model=self.config.server_args.served_model_name,
                request=request,
                choices=stream_source.choices,
                user_stop_token_ids=user_stop_token_ids,
                uploads=metadata_uploader is not None,
                notify_first_token=context.notify_first_token,
            ),
            merge=merge_by_stream,
            tapped=self.tap,
            choices=stream_source.choices,
            uploader=metadata_uploader,
        )

    def _native_generate_stream(
        self,
        request: dict[str, Any],
        native_payload: Mapping[str, Any],
        input_param: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> NativeSubmission:
        stream = super()._native_generate_stream(
            request, native_payload, input_param, *args, **kwargs
        )
        choices = native_choices(
            native_payload.get("sampling_params"), input_param.get("input_ids")
        )
        return NativeSubmission(stream, choices)

    async def _process_native_generate_stream(
        self,
        stream_source: NativeSubmission,
        context: Any,
        submitted_request_id: str | None = None,
        internal_request_id: str | None = None,
        response_request_id: str | list[str] | None = None,
        report_kv_cache_hit: bool = True,
    ) -> AsyncIterator[Plan]:
        """asyncio. The incumbent is about to stream SGLang's own answers."""
        assert internal_request_id is not None
        yield Plan(
            engine_rid=internal_request_id,
            ordered=submitted_request_id is not None,
            submit=stream_source.submit,
            responses=NativeResponses(
                choices=stream_source.choices,
                internal_request_id=internal_request_id,
                response_request_id=response_request_id,
                report_kv_cache_hit=report_kv_cache_hit and self._reports_kv_cache_hit,
                notify_first_token=context.notify_first_token,
            ),
            merge=functools.partial(
                merge_native_by_stream,
                # Only here all metadata goes to the client. Unknown where the tap is off.
                customized_keys=getattr(self.engine.tokenizer_manager, "customized_keys", ()),
            ),
            choices=stream_source.choices,
        )
