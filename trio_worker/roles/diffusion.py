# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Diffusion language models (R8): decode without media, LoRA and cache control."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from dynamo.sglang.engine_generate import new_sglang_request_id
from dynamo.sglang.request_handlers import DiffusionWorkerHandler
from dynamo.sglang.request_handlers.llm.decode_handler import _ordered_cancellation_request_id

from trio_worker.requests.plan import Plan
from trio_worker.roles.decode import DecodeRequests
from trio_worker.roles.submission import Submission


class DiffusionRequests(DecodeRequests, DiffusionWorkerHandler):  # type: ignore[misc]
    """The incumbent's handler with its streaming half taken out.

    The incumbent submits the context's id while it traces, so that two live requests of one trace
    collide (defect B21), and no id of its own else, so that nothing can be aborted before the
    engine's first output (B12). Ours has a rid like every other request (rule 6).
    """

    def _process_token_stream(
        self, stream_source: Submission, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Plan]:
        """asyncio. The incumbent is about to stream token ids."""
        kwargs["submitted_request_id"] = self._name(stream_source)
        return super()._process_token_stream(stream_source, *args, **kwargs)

    def _process_text_stream(
        self, stream_source: Submission, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Plan]:
        """asyncio. The incumbent is about to stream text."""
        kwargs["submitted_request_id"] = self._name(stream_source)
        return super()._process_text_stream(stream_source, *args, **kwargs)

    def _name(self, submission: Submission) -> str | None:
        rid = submission.kwargs["rid"] = new_sglang_request_id()
        ordered: str | None = _ordered_cancellation_request_id(
            rid,
            submission.kwargs["sampling_params"],
            supported=self._supports_ordered_cancellation,
        )
        return ordered
