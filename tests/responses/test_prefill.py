# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Prefill against the incumbent's handler as a whole."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.request_handlers.llm import prefill_handler
from dynamo.sglang.request_handlers.llm.prefill_handler import PrefillWorkerHandler

from tests.responses.chunks import ERROR_ABORTS, RID, chunk
from tests.responses.oracle import CONTEXT_ID, Chunk
from trio_worker.responses import PrefillResponses, bootstrap_response, wrap_native

STOP = {"type": "length", "length": 1}

STREAMS: dict[str, list[Chunk]] = {
    "one chunk": [chunk([1], finish=STOP)],
    "several chunks": [chunk([]), chunk([1], cached=1), chunk([], finish=STOP)],
    "never finished": [chunk([1])],
    "nothing": [],
    "no prompt count": [chunk([1], finish=STOP, prompt=None)],
    "no cached count": [chunk([1], finish=STOP, cached=None)],
    "finished twice": [chunk([1], finish=STOP, cached=1), chunk([1], finish=STOP, cached=2)],
    "wrapped": [wrap_native(chunk([1])), wrap_native(chunk([1], finish=STOP, cached=2))],
    "no metadata": [{"output_ids": [1]}, {"meta_info": None, "output_ids": []}],
    "plain abort": [chunk([], finish={"type": "abort"})],
    **{
        f"error abort: {name}": [chunk([], finish={"type": "abort", **details})]
        for name, details in ERROR_ABORTS.items()
    },
}


def incumbent_prefill(chunks: list[Chunk]) -> list[dict[str, Any]]:
    async def results() -> AsyncIterator[Chunk]:
        for each in chunks:
            yield each

    async def async_generate(**_: Any) -> AsyncIterator[Chunk]:
        return results()

    @asynccontextmanager
    async def unwatched(*_: Any) -> AsyncIterator[asyncio.Future[None]]:
        yield asyncio.get_running_loop().create_future()

    handler = PrefillWorkerHandler.__new__(PrefillWorkerHandler)
    handler.engine = SimpleNamespace(async_generate=async_generate)
    handler.config = SimpleNamespace(server_args=SimpleNamespace())
    handler.bootstrap_host, handler.bootstrap_port = "10.0.0.7", 8998
    handler.enable_trace = False
    handler._consume_tasks = set()
    handler._generate_bootstrap_room = lambda: 17
    handler._get_input_param = lambda request: {"input_ids": request["token_ids"]}
    handler._resolve_lora = lambda request: None
    handler._priority_kwargs = lambda priority: {}
    handler._cancellation_monitor = unwatched

    async def consume() -> list[dict[str, Any]]:
        context = SimpleNamespace(id=lambda: CONTEXT_ID)
        return [out async for out in handler.generate({"token_ids": [1, 2]}, context)]

    with (
        mock.patch.object(prefill_handler, "require_reasoning_kwargs", return_value={}),
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
    ):
        return runner.run(consume())


def our_prefill(chunks: list[Chunk]) -> list[dict[str, Any]]:
    sent = [bootstrap_response("10.0.0.7", 8998, 17)]
    responses = PrefillResponses()
    for each in chunks:
        assert responses.convert(each, shutting_down=False) is None
    trailing = responses.trailing()
    if trailing is not None:
        sent.append(trailing)
    return sent


@pytest.mark.parametrize("name", STREAMS)
def test_equals_the_incumbent(name: str) -> None:
    mine, theirs = our_prefill(STREAMS[name]), incumbent_prefill(STREAMS[name])
    assert mine == theirs
    assert repr(mine) == repr(theirs)


def test_the_last_response_reports_the_cache_hit() -> None:
    assert our_prefill(STREAMS["wrapped"])[1:] == [
        {"token_ids": [], "engine_data": {"kv_cache_hit": {"prompt_tokens": 7, "reused_tokens": 2}}}
    ]
    assert our_prefill(STREAMS["never finished"])[1:] == []


def test_an_abort_in_a_shutdown_migrates() -> None:
    """Rule 39. The incumbent's monitor raises the same once the stream has ended."""
    responses = PrefillResponses()
    responses.convert(chunk([1]), shutting_down=True)
    with pytest.raises(EngineShutdown, match="shut down during token generation"):
        responses.convert(chunk([], finish={"type": "abort"}), shutting_down=True)
    assert not responses.all_finished
    assert responses.trailing() is None


def test_ids_are_followed_in_both_wrappings() -> None:
    responses = PrefillResponses()
    responses.convert(chunk([1], rid="a"), shutting_down=False)
    responses.observe(wrap_native(chunk([1], rid="b")))
    responses.observe(chunk([1], rid="c"))
    assert responses.unfinished_ids == {"a", "b", "c"}
    responses.observe(chunk([1], rid="c", finish=STOP))
    assert responses.unfinished_ids == {"a", "b"}
    assert not responses.all_finished
    responses.convert(chunk([1], rid=RID, finish=STOP), shutting_down=False)
    assert responses.all_finished
