# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.roles.pooling: the incumbent's answers, rids of ours, one abort, no drain."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio_asyncio
from trio.testing import MockClock

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.request_handlers import EmbeddingWorkerHandler, RerankWorkerHandler

from compat.loop import WorkerLoop
from tests.fakes.context import FakeContext
from tests.fakes.engine import FakeEngine
from tests.fakes.journal import Journal
from tests.fakes.script import NEVER, EngineScript
from tests.roles.rig import Rig, config, incumbents, open_rig
from tests.semantics.ours import TappedManager
from trio_worker.roles.pooling import EmbeddingRequests, RerankRequests

TEXT = {"model": "m", "input": "abc"}
TEXTS = {"model": "m", "input": ["abc", "de"]}
IDS = {"model": "m", "input": [7, 8, 9]}
BATCH = {"model": "m", "input": [[7, 8], [9], [1, 2, 3]]}
PAIRS = {"model": "m", "query": "q", "documents": ["a", "zz", "b"]}


@asynccontextmanager
async def open_pooling(
    handler_class: type, script: EngineScript | None = None
) -> AsyncIterator[tuple[Rig, FakeEngine]]:
    engines: list[FakeEngine] = []

    def make(_loop: WorkerLoop, journal: Journal) -> tuple[Any, Any]:
        engine = FakeEngine(journal, script, manager_class=TappedManager)
        engine.tokenizer_manager.is_generation = False
        engine.tokenizer_manager.auto_create_handle_loop()
        engines.append(engine)
        return engine.tokenizer_manager, handler_class(engine, config())

    async with open_rig(make) as rig:
        yield rig, engines[0]
        await trio_asyncio.aio_as_trio(engines[0].stop)()


def incumbent_of(handler_class: type, engine: FakeEngine) -> Any:
    kind = EmbeddingWorkerHandler if handler_class is EmbeddingRequests else RerankWorkerHandler
    return kind(engine, config())


def without_rids(answer: Any) -> Any:
    """Rids and times differ from run to run."""
    if not isinstance(answer, list):
        return answer
    return [{**item, "meta_info": item["meta_info"]["prompt_tokens"]} for item in answer]


@pytest.mark.parametrize(
    ("handler_class", "request_"),
    [
        (EmbeddingRequests, TEXT),
        (EmbeddingRequests, TEXTS),
        (EmbeddingRequests, IDS),
        (EmbeddingRequests, BATCH),
        (EmbeddingRequests, {**BATCH, "dimensions": 2}),
        (EmbeddingRequests, {**TEXT, "encoding_format": "base64"}),
        (RerankRequests, PAIRS),
        (RerankRequests, {**PAIRS, "top_n": 2}),
        (RerankRequests, {**PAIRS, "return_documents": False}),
    ],
)
async def test_the_answer_is_the_incumbents(
    handler_class: type, request_: dict[str, Any], autojump_clock: MockClock
) -> None:
    async with open_pooling(handler_class) as (rig, engine):
        theirs = await incumbents(
            incumbent_of(handler_class, engine), request_, FakeContext(rig.journal)
        )
        ours = await rig.answer(request_)
        assert without_rids(ours) == without_rids(theirs)
        assert engine.tokenizer_manager.rid_to_state == {}
        assert rig.feeders.detached == 0


@pytest.mark.parametrize(
    ("handler_class", "request_"),
    [
        (EmbeddingRequests, {"model": "m"}),
        (EmbeddingRequests, {**TEXT, "dimensions": 0}),
        (EmbeddingRequests, {**TEXT, "dimensions": 1000}),
        (EmbeddingRequests, {"model": "m", "input": []}),
        (EmbeddingRequests, {"model": "m", "input": [2_000_000_000]}),
        (RerankRequests, {**PAIRS, "query": " "}),
        (RerankRequests, {**PAIRS, "documents": []}),
        (RerankRequests, {**PAIRS, "top_n": 0}),
    ],
)
async def test_the_error_is_the_incumbents(
    handler_class: type, request_: dict[str, Any], autojump_clock: MockClock
) -> None:
    async with open_pooling(handler_class) as (rig, engine):
        errors = []
        for ask in (
            lambda: incumbents(
                incumbent_of(handler_class, engine), request_, FakeContext(rig.journal)
            ),
            lambda: rig.answer(request_),
        ):
            try:
                await ask()
            except Exception as error:
                errors.append((type(error), str(error)))
        assert len(errors) in (0, 2)
        assert errors[:1] == errors[1:]
        assert engine.tokenizer_manager.rid_to_state == {}


@pytest.mark.parametrize(
    ("handler_class", "request_"),
    [(EmbeddingRequests, TEXT), (EmbeddingRequests, BATCH), (RerankRequests, PAIRS)],
)
async def test_b21_requests_of_one_trace_are_all_served(
    handler_class: type, request_: dict[str, Any], autojump_clock: MockClock
) -> None:
    async with open_pooling(handler_class) as (rig, engine):
        calls = [rig.call(request_, trace_id="one-trace") for _ in range(3)]
        for call in calls:
            await call.finish()
        assert [call.error for call in calls] == [None] * 3
        assert [len(call.answers) for call in calls] == [1] * 3
        assert not any("one-trace" in (entry.rid or "") for entry in rig.journal.entries)

        handler = incumbent_of(handler_class, engine)

        async def theirs() -> None:
            await incumbents(handler, request_, FakeContext(rig.journal, trace_id="one-trace"))

        with pytest.RaisesGroup(
            pytest.RaisesExc(ValueError, match="Duplicate request ID"), flatten_subgroups=True
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(theirs)
                nursery.start_soon(theirs)


PARTS = [
    (EmbeddingRequests, TEXT, 1),
    (EmbeddingRequests, IDS, 1),
    (EmbeddingRequests, BATCH, 3),
    (RerankRequests, PAIRS, 3),
]


@pytest.mark.parametrize(("handler_class", "request_", "parts"), PARTS)
async def test_a_client_that_leaves_is_aborted_once_and_not_drained_for(
    handler_class: type, request_: dict[str, Any], parts: int, autojump_clock: MockClock
) -> None:
    async with open_pooling(handler_class, EngineScript(outputs=NEVER)) as (rig, engine):
        call = rig.call(request_)
        await trio.sleep(1)
        assert len(engine.scheduler.busy) == parts
        left_at = trio.current_time()
        call.context.stop()
        await call.finish()
        assert trio.current_time() - left_at < 0.1
        assert (call.answers, call.error) == ([], None)
        await trio.sleep(1)
        assert len(rig.journal.of("abort matched")) == parts
        assert rig.journal.of("abort matches nothing") == []
        assert engine.scheduler.busy == {}
        assert engine.tokenizer_manager.rid_to_state == {}
        assert (rig.feeders.detached, rig.live.drains_timed_out) == (0, 0)


@pytest.mark.parametrize(("handler_class", "request_", "parts"), PARTS)
async def test_what_was_not_dispatched_is_dropped(
    handler_class: type, request_: dict[str, Any], parts: int, autojump_clock: MockClock
) -> None:
    script = EngineScript(tokenize_delay=1.0, outputs=NEVER)
    async with open_pooling(handler_class, script) as (rig, engine):
        call = rig.call(request_)
        await trio.sleep(1.5)  # of a batch, the first part is out
        dispatched = len(engine.scheduler.busy)
        assert dispatched <= parts
        call.context.stop()
        await call.finish()
        await trio.sleep(5)
        assert len(rig.journal.of("dispatched")) == dispatched
        assert len(rig.journal.of("abort matched")) == dispatched
        assert rig.journal.of("abort matches nothing") == []
        assert engine.tokenizer_manager.rid_to_state == {}


@pytest.mark.parametrize(("handler_class", "request_", "parts"), PARTS)
async def test_a_shutdown_migrates_and_aborts(
    handler_class: type, request_: dict[str, Any], parts: int, autojump_clock: MockClock
) -> None:
    async with open_pooling(handler_class, EngineScript(outputs=NEVER)) as (rig, engine):
        call = rig.call(request_)
        await trio.sleep(1)
        asked_at = trio.current_time()
        rig.live.migrate_all()
        await rig.live.wait_all_ended()
        await call.finish()
        assert trio.current_time() - asked_at < 0.1
        assert isinstance(call.error, EngineShutdown)
        await trio.sleep(1)
        assert len(rig.journal.of("abort matched")) == parts
        assert engine.scheduler.busy == {}
        assert rig.live.migrated == 1

        late = rig.call(request_)
        await late.finish()
        assert isinstance(late.error, EngineShutdown)


async def test_nothing_holds_sglangs_reader_lock_after_an_answer(
    autojump_clock: MockClock,
) -> None:
    async with open_pooling(EmbeddingRequests) as (rig, engine):
        manager = engine.tokenizer_manager
        await rig.answer(BATCH)
        assert not await trio_asyncio.aio_as_trio(manager.model_update_lock.is_locked)()


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("handler_class", "request_", "parts"), PARTS)
async def test_a_request_is_freed_without_the_collector(
    handler_class: type,
    request_: dict[str, Any],
    parts: int,
    leaves: bool,
    autojump_clock: MockClock,
) -> None:
    script = EngineScript(outputs=NEVER) if leaves else EngineScript(prefill_delay=2.0)
    async with open_pooling(handler_class, script) as (rig, _engine):
        gc.collect()
        gc.disable()
        try:
            call = rig.call(request_)
            await trio.sleep(1)
            (request,) = [weakref.ref(one) for one in rig.live]
            if leaves:
                call.context.stop()
            await call.finish()
            await trio.sleep(1)
            assert request() is None
        finally:
            gc.enable()


async def test_a_decoder_reranker_is_refused_at_the_start(autojump_clock: MockClock) -> None:
    def make(_loop: WorkerLoop, journal: Journal) -> tuple[Any, Any]:
        engine = FakeEngine(journal)
        engine.tokenizer_manager.model_config.model_path = "Qwen/Qwen3-Reranker-0.6B"
        return engine.tokenizer_manager, RerankRequests(engine, config())

    with pytest.RaisesGroup(
        pytest.RaisesExc(ValueError, match="cross-encoder rerankers only"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with open_rig(make):
            raise AssertionError("opened")
