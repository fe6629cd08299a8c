# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.roles.diffusion: under which id a diffusion model's requests run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
import trio_asyncio
from dynamo.llm.exceptions import InvalidArgument
from dynamo.sglang.args import Config

from compat.loop import open_loop
from tests.fakes.context import FakeContext
from tests.fakes.engine import FakeEngine
from tests.fakes.journal import Journal
from trio_worker.requests.plan import Plan
from trio_worker.roles.diffusion import DiffusionRequests

REQUEST = {"token_ids": [97, 98, 99], "stop_conditions": {}, "sampling_options": {}}
TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


async def planned(request: dict[str, Any], context_ids: list[str]) -> list[Plan]:
    journal = Journal()
    async with open_loop():
        journal.open()
        engine = FakeEngine(journal, server_args={"enable_trace": True})
        config = Config(engine.server_args, SimpleNamespace(use_sglang_tokenizer=False))
        handler = DiffusionRequests(engine, config, None, None, None)
        plans = [
            await trio_asyncio.aio_as_trio(handler.plan)(
                request, FakeContext(journal, context_id, headers=TRACE)
            )
            for context_id in context_ids
        ]
        await trio_asyncio.aio_as_trio(engine.stop)()
    return plans


async def test_live_requests_of_one_trace_have_rids_of_their_own() -> None:
    """The incumbent submits the context's id: SGLang refuses the second."""
    first, second = await planned(REQUEST, ["one-context", "one-context"])
    assert len({first.engine_rid, second.engine_rid, "one-context"}) == 3
    for plan in (first, second):
        assert plan.ordered
        submission = plan.submit.__self__  # type: ignore[attr-defined]
        assert submission.kwargs["rid"] == plan.engine_rid
        assert submission.kwargs["external_trace_header"] == TRACE


async def test_a_thinking_budget_is_refused_before_anything_is_submitted() -> None:
    request = {**REQUEST, "stop_conditions": {"max_thinking_tokens": 16}}
    with pytest.RaisesGroup(InvalidArgument, flatten_subgroups=True, allow_unwrapped=True):
        await planned(request, ["one-context"])
