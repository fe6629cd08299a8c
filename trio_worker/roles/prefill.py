# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Disaggregated prefill (R11): bootstrap info first, results consumed by the request's own task."""

from __future__ import annotations

import copy
import functools
from typing import Any

from dynamo.sglang.request_handlers import PrefillWorkerHandler

from compat.handover import Chunk
from trio_worker.requests.backlog import merge_by_stream
from trio_worker.requests.plan import Plan
from trio_worker.responses import PrefillResponses
from trio_worker.responses.state import Responses
from trio_worker.roles.control import Control
from trio_worker.roles.submission import EngineRecorder, NativeSubmission, Submission


class PrefillRequests(Control, PrefillWorkerHandler):  # type: ignore[misc]  # Dynamo has no types
    """The incumbent's handler with its streaming half taken out."""

    tap: bool = True

    @functools.cached_property
    def _recorder(self) -> EngineRecorder:
        return EngineRecorder(self.engine)

    async def plan(self, request: dict[str, Any], context: Any) -> Plan:
        """asyncio. Decide everything about `request`; raises what the incumbent raises."""
        planner = copy.copy(self)
        planner.engine = self._recorder
        planner._consumed = []
        outputs = [out async for out in super(PrefillRequests, planner).generate(request, context)]
        if isinstance(outputs[0], Submission):
            return _canary(outputs[0])
        results, submitted_request_id = planner._consumed[0]
        submission = (
            results if isinstance(results, Submission) else NativeSubmission(results, choices=1)
        )
        responses = PrefillResponses()
        return Plan(
            engine_rid=submitted_request_id or _rid_of(submission),
            ordered=submitted_request_id is not None,
            submit=submission.submit,
            responses=responses,
            merge=_keep,
            tapped=self.tap and isinstance(submission, Submission),
            opening=outputs[0],
            closing=responses.trailing,
        )

    async def _consume_results(
        self, results: Any, submitted_request_id: str | None, _context: Any
    ) -> None:
        """asyncio. Where the incumbent would consume the engine's results in a loose task."""
        self._consumed.append((results, submitted_request_id))


class _RawResponses(Responses):
    """The canary's answers: the engine's chunks as they are (rule 84)."""

    __slots__ = ()

    def convert(self, chunk: Chunk, *, shutting_down: bool) -> Chunk:
        self.observe(chunk)
        meta_info = chunk.get("meta_info") or {}
        if meta_info.get("finish_reason"):
            self._finished.add(0)
        return chunk


def _canary(submission: Submission) -> Plan:
    return Plan(
        engine_rid=submission.kwargs["rid"],
        ordered=True,
        submit=submission.submit,
        responses=_RawResponses(),
        merge=merge_by_stream,
    )


def _rid_of(submission: Submission | NativeSubmission) -> str:
    return submission.kwargs["rid"] if isinstance(submission, Submission) else "unknown"


def _keep(chunks: list[Chunk]) -> list[Chunk]:
    """A prefill answers with one chunk; nothing to merge."""
    return chunks
