# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What SGLang 0.5.21 does with requests, seen through the fake engine.

These are facts about SGLang's own code that the request path is built on. If one of them changes
with an upgrade, the test that fails here says which.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio_asyncio
from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput
from trio.testing import MockClock

from tests.fakes.bridge import open_loop
from tests.fakes.engine import FakeEngine
from tests.fakes.journal import Journal
from tests.fakes.script import NEVER, EngineScript, Output, Retract, tokens

Chunk = dict[str, Any]


class Bench:
    """An engine on an open loop, and what its streams gave."""

    def __init__(self, engine: FakeEngine, loop: Any) -> None:
        self.engine = engine
        self.manager = engine.tokenizer_manager
        self.journal = engine.journal
        self.loop = loop
        self.chunks: list[Chunk] = []

    async def generate(self, rid: str = "r", **sampling: Any) -> Any:
        """asyncio. SGLang's stream of one request."""
        return await self.engine.async_generate(
            input_ids=[1, 2, 3],
            sampling_params={"max_new_tokens": 50, **sampling},
            stream=True,
            rid=rid,
        )

    async def read(self, rid: str = "r", **sampling: Any) -> None:
        """asyncio. Read one stream to its end."""
        async for chunk in await self.generate(rid, **sampling):
            self.chunks.append(chunk)

    def start(self, rid: str = "r", **sampling: Any) -> asyncio.Task[None]:
        """Trio. Read one stream in the background."""
        task: asyncio.Task[None] = self.loop.create_task(self.read(rid, **sampling))
        return task

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk["output_ids"]]

    def events(self, event: str) -> list[tuple[float, str | None]]:
        return [(entry.time, entry.rid) for entry in self.journal.of(event)]


@asynccontextmanager
async def open_bench(script: EngineScript | None = None, **options: Any) -> AsyncIterator[Bench]:
    async with open_loop() as loop:
        journal = Journal()
        journal.open()
        engine = FakeEngine(journal, script, **options)
        yield Bench(engine, loop)
        await trio_asyncio.aio_as_trio(engine.stop)()


async def ended(task: asyncio.Task[None]) -> None:
    """Trio. Wait for `task`, whatever its end."""
    over = trio.Event()
    task.add_done_callback(lambda _task: over.set())
    await over.wait()


@pytest.mark.parametrize("skip_tokenizer_init", [False, True])
async def test_chunks_are_deltas_with_cumulative_counts(
    autojump_clock: MockClock, skip_tokenizer_init: bool
) -> None:
    options = {"server_args": {"skip_tokenizer_init": skip_tokenizer_init}}
    async with open_bench(EngineScript(outputs=tokens(3)), **options) as bench:
        await trio_asyncio.aio_as_trio(bench.read)()
    assert [chunk["output_ids"] for chunk in bench.chunks] == [[100], [101], [102]]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in bench.chunks] == [1, 2, 3]
    assert [chunk["meta_info"]["finish_reason"] for chunk in bench.chunks] == [
        None,
        None,
        {"type": "length", "length": 3},
    ]
    assert all(("text" in chunk) is not skip_tokenizer_init for chunk in bench.chunks)
    assert bench.manager.rid_to_state == {}
    assert bench.events("registered") == bench.events("dispatched") == [(0.0, "r")]


async def test_outputs_that_wait_are_merged_into_one_chunk(autojump_clock: MockClock) -> None:
    """Field report S6: 50 outputs in one tick must not lose a token."""
    script = EngineScript(outputs=(Output(messages=50), *tokens(1)))
    async with open_bench(script) as bench:
        await trio_asyncio.aio_as_trio(bench.read)()
    assert [len(chunk["output_ids"]) for chunk in bench.chunks] == [50, 1]
    assert bench.ids == list(range(100, 151))
    assert bench.chunks[0]["text"] == "".join(f"<{token}>" for token in range(100, 150))


async def test_an_abort_of_an_unknown_rid_is_not_sent(autojump_clock: MockClock) -> None:
    async with open_bench() as bench:
        bench.manager.abort_request(rid="nobody")
    assert bench.events("abort called") == [(0.0, "nobody")]
    assert bench.events("abort matched") == bench.events("abort matches nothing") == []


async def test_one_abort_is_sent_per_state(autojump_clock: MockClock) -> None:
    async with open_bench(EngineScript(outputs=NEVER, abort_latency=1.0)) as bench:
        task = bench.start()
        await trio.sleep(0.5)
        for _ in range(3):
            bench.manager.abort_request(rid="r")
        await ended(task)
    assert len(bench.events("abort called")) == 3
    assert bench.events("abort matched") == [(0.5, "r")]


async def test_an_abort_before_dispatch_matches_nothing_and_spoils_the_request(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(EngineScript(tokenize_delay=1.0, outputs=tokens(5))) as bench:
        task = bench.start()
        await trio.sleep(0.5)
        bench.manager.abort_request(rid="r")
        await trio.sleep(0.75)
        bench.manager.abort_request(rid="r")
        await ended(task)
    assert bench.events("abort matches nothing") == [(0.5, "r")]
    assert bench.events("abort matched") == []
    assert bench.ids == [100, 101, 102, 103, 104]


async def test_the_scheduler_matches_rids_by_prefix(autojump_clock: MockClock) -> None:
    async with open_bench(EngineScript(outputs=NEVER)) as bench:
        tasks = [bench.start(rid) for rid in ("r", "ring", "other")]
        await trio.sleep(0.5)
        bench.manager.abort_request(rid="r")
        await trio.sleep(0.5)
        assert [task.done() for task in tasks] == [True, True, False]
        assert list(bench.engine.scheduler.busy) == ["other"]
        tasks[2].cancel()
        await ended(tasks[2])


async def test_a_running_request_finishes_its_step_when_it_is_aborted(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(EngineScript(outputs=tokens(50))) as bench:
        task = bench.start()
        await trio.sleep(0.25)
        bench.manager.abort_request(rid="r")
        await ended(task)
    assert bench.ids == [100, 101, 102]
    assert bench.chunks[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert bench.events("output")[-1][0] == 0.27


async def test_a_queued_request_is_echoed_when_it_is_aborted(autojump_clock: MockClock) -> None:
    """With the last token and the whole text again, in incremental mode (rule 119)."""
    script = EngineScript(outputs=(Output(), Output(), Retract(queued=5.0), *tokens(5)))
    async with open_bench(script) as bench:
        task = bench.start()
        await trio.sleep(0.5)
        bench.manager.abort_request(rid="r")
        await ended(task)
    assert bench.events("abort echoed") == [(0.51, "r")]
    echo = bench.chunks[-1]
    assert echo["output_ids"] == [101]
    assert echo["text"] == "<100><101>"
    assert echo["meta_info"]["completion_tokens"] == 2
    assert echo["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_a_stream_aborts_what_is_dispatched(
    autojump_clock: MockClock, how: str
) -> None:
    async with open_bench(EngineScript(outputs=tokens(50))) as bench:

        async def leave() -> None:
            stream = await bench.generate()
            await anext(stream)
            if how == "close":
                await stream.aclose()
            else:
                reading = bench.loop.create_task(anext(stream))
                await asyncio.sleep(0.05)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading

        await trio_asyncio.aio_as_trio(leave)()
        assert bench.events("abort matched") == [(0.1 if how == "close" else 0.15, "r")]
        await trio.sleep(1.0)
        assert bench.engine.scheduler.busy == bench.manager.rid_to_state == {}


async def test_leaving_a_stream_drops_what_is_not_dispatched(autojump_clock: MockClock) -> None:
    async with open_bench(EngineScript(tokenize_delay=1.0)) as bench:
        task = bench.start()
        await trio.sleep(0.5)
        task.cancel()
        await ended(task)
        assert bench.manager.rid_to_state == {}
        await trio.sleep(5.0)
    assert bench.events("dispatched") == bench.events("abort matched") == []


async def test_choices_get_rids_of_their_own_and_states_are_left(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(EngineScript(outputs=tokens(2))) as bench:
        await trio_asyncio.aio_as_trio(bench.read)(n=3)
    dispatched = [rid for _, rid in bench.events("dispatched")]
    assert len(dispatched) == 1 + 3  # the prefix warm-up first
    assert not {"r", "r_0", "r_1", "r_2"} & set(dispatched)
    assert {chunk["meta_info"]["id"] for chunk in bench.chunks} == set(dispatched[1:])
    assert sorted({chunk["index"] for chunk in bench.chunks}) == [0, 1, 2]
    assert sorted(bench.manager.rid_to_state) == ["r_1", "r_2"]


async def test_closing_a_stream_of_choices_aborts_all_of_them(autojump_clock: MockClock) -> None:
    """Also one that has not spoken (rule 130)."""
    script = EngineScript(outputs=tokens(50), choice_delays=(0.0, 0.0, 9.0))
    async with open_bench(script) as bench:

        async def leave() -> None:
            stream = await bench.generate(n=3)
            await anext(stream)
            await stream.aclose()

        await trio_asyncio.aio_as_trio(leave)()
        assert len({rid for _, rid in bench.events("abort matched")}) == 3
        await trio.sleep(1.0)
        assert bench.engine.scheduler.busy == bench.manager.rid_to_state == {}


async def test_a_paused_engine_registers_but_does_not_dispatch(autojump_clock: MockClock) -> None:
    """Field report S4: an abort in that window matches nothing."""
    async with open_bench(EngineScript(outputs=tokens(2))) as bench:
        pause = PauseGenerationReqInput(mode="in_place")
        await trio_asyncio.aio_as_trio(bench.manager.pause_generation)(pause)
        task = bench.start()
        await trio.sleep(3.0)
        assert bench.events("registered") == [(0.0, "r")]
        assert bench.events("dispatched") == []
        await trio_asyncio.aio_as_trio(bench.manager.continue_generation)(
            ContinueGenerationReqInput()
        )
        await ended(task)
    assert bench.events("dispatched") == [(3.0, "r")]
    assert bench.ids == [100, 101]


async def test_a_stream_holds_the_reader_lock_until_it_is_closed(
    autojump_clock: MockClock,
) -> None:
    async with open_bench(EngineScript(outputs=tokens(2))) as bench:
        is_locked = trio_asyncio.aio_as_trio(bench.manager.model_update_lock.is_locked)

        async def take_one() -> Any:
            stream = await bench.generate()
            await anext(stream)
            return stream

        stream = await trio_asyncio.aio_as_trio(take_one)()
        await trio.sleep(5.0)
        assert await is_locked()
        await trio_asyncio.aio_as_trio(stream.aclose)()
        assert not await is_locked()


async def test_a_failing_receive_loop_fails_the_test_and_not_the_process(
    autojump_clock: MockClock,
) -> None:
    async def receive_nonsense() -> None:
        async with open_bench() as bench:
            bench.manager.auto_create_handle_loop()
            bench.manager.recv_from_detokenizer.put("nonsense")
            await trio.sleep(0.5)

    with pytest.raises(ValueError, match="Invalid object"):
        await receive_nonsense()
