# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Plans of roles that answer once: the incumbent's ``generate`` runs whole, under a rid of ours."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from compat.handover import Chunk
from trio_worker.requests.plan import Plan
from trio_worker.responses import AnswerResponses, wrap_answer


class RequestContext:
    """A request's ``Context`` as its handler sees it: the trace id is our rid.

    The incumbent derives SGLang's rids from the trace id. A client that sends several requests
    under one trace would have all but the first refused as duplicates (C55, defect B21). Trace
    headers stay the caller's.
    """

    def __init__(self, context: Any, rid: str) -> None:
        self._context = context
        self.trace_id = rid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


Answer = Callable[[RequestContext], Awaitable[Any]]


def plan_answer(context: Any, answer: Answer) -> Plan:
    """asyncio. ``answer(context)`` (asyncio) is awaited when the plan is carried out.

    Whoever ends the request before that cancels it, and it sees to its engine by itself.
    """
    rid = uuid.uuid4().hex

    async def submit() -> AsyncIterator[Chunk]:
        return _one_chunk(answer, RequestContext(context, rid))

    return Plan(
        engine_rid=rid,
        ordered=False,
        submit=submit,
        responses=AnswerResponses(),
        merge=_keep,
        drains=False,
    )


async def only(answers: AsyncGenerator[Any, None]) -> Any:
    """asyncio. The one answer of a generator that is run to its end.

    Left half-way, it would be closed by a task that nobody owns.
    """
    collected = [answer async for answer in answers]
    return collected[0]


async def _one_chunk(answer: Answer, context: RequestContext) -> AsyncIterator[Chunk]:
    yield wrap_answer(await answer(context))


def _keep(chunks: list[Chunk]) -> list[Chunk]:
    """One chunk is all there is; nothing to merge."""
    return chunks
