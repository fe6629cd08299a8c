# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""compat.handover: order, one wake-up, nothing lost, nothing raised into the writer."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from compat.handover import Handover


class Reader:
    """Reads until the end of the stream, and keeps what it got and how often it woke."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.got: list[Any] = []
        self.batches: list[int] = []
        self.error: BaseException | None = None

    async def run(self) -> None:
        while True:
            try:
                chunks = await self.handover.receive()
            except trio.EndOfChannel:
                return
            except ValueError as error:
                self.error = error
                return
            self.batches.append(len(chunks))
            self.got += [chunk["n"] for chunk in chunks]


def chunk(number: int) -> dict[str, Any]:
    return {"n": number}


async def test_chunks_of_one_tick_wake_the_reader_once_and_keep_their_order() -> None:
    handover = Handover(merge_at=100)
    reader = Reader(handover)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await wait_all_tasks_blocked()
        for number in range(50):
            handover.put(chunk(number))
        handover.close()
    assert reader.got == list(range(50))
    assert reader.batches == [50]


async def test_parked_reader_gets_chunks_in_place_and_is_not_woken() -> None:
    handover = Handover(merge_at=100)
    reader = Reader(handover)
    in_place: list[int] = []
    handover.deliver = lambda item: in_place.append(item["n"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await wait_all_tasks_blocked()
        assert handover.parked
        for number in range(5):
            handover.put(chunk(number))
        assert in_place == [0, 1, 2, 3, 4]
        handover.close()
    assert reader.got == []


async def test_after_a_ring_chunks_queue_behind_the_bell() -> None:
    """An item handed to a waiting reader is out of the channel: "empty" must not mean parked."""
    handover = Handover(merge_at=100)
    reader = Reader(handover)
    in_place: list[int] = []
    handover.deliver = lambda item: in_place.append(item["n"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await wait_all_tasks_blocked()
        handover.put(chunk(0))
        handover.ring()
        handover.put(chunk(1))
        handover.put(chunk(2))
        assert in_place == [0]
        await wait_all_tasks_blocked()
        assert reader.got == [1, 2]
        handover.put(chunk(3))
        assert in_place == [0, 3]
        handover.close()


async def test_rule_120_what_deliver_raises_becomes_the_streams_error() -> None:
    handover = Handover(merge_at=100)
    reader = Reader(handover)

    def deliver(_item: Any) -> None:
        raise ValueError("conversion")

    handover.deliver = deliver
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await wait_all_tasks_blocked()
        handover.put(chunk(0))
    assert isinstance(reader.error, ValueError)


async def test_rule_121_an_error_waits_for_the_chunks_before_it() -> None:
    handover = Handover(merge_at=100)
    reader = Reader(handover)
    handover.put(chunk(0))
    handover.fail(ValueError("engine"))
    handover.close()
    await reader.run()
    assert reader.got == [0]
    assert isinstance(reader.error, ValueError)


async def test_cancelled_reader_is_not_parked_and_loses_nothing() -> None:
    handover = Handover(merge_at=100)
    handover.deliver = lambda item: pytest.fail("nobody is parked")
    with trio.CancelScope() as scope:
        scope.cancel()
        await handover.receive()
    assert scope.cancelled_caught
    assert not handover.parked
    handover.put(chunk(0))
    assert await handover.receive() == [chunk(0)]


async def test_waiting_chunks_are_merged_beyond_the_limit() -> None:
    handover = Handover(merge_at=4)
    handover.merge = lambda chunks: [{"n": sum(item["n"] for item in chunks)}]
    for _ in range(1000):
        handover.put(chunk(1))
        assert handover.backlog <= 5
    assert sum(item["n"] for item in await handover.receive()) == 1000


async def test_rule_049_a_late_error_is_logged_and_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handover = Handover(merge_at=100)
    handover.leave()
    handover.put(chunk(0))
    handover.fail(ValueError("late"))
    handover.close()
    assert handover.backlog == 0
    assert "Detached SGLang task failed during cancellation" in caplog.text


async def test_a_bell_without_chunks_brings_the_reader_back() -> None:
    """Parked again at once, it would go on taking chunks in place, however far behind its egress
    is."""
    handover = Handover(merge_at=100)
    handover.deliver = lambda item: None
    async with trio.open_nursery() as nursery:
        reader = Reader(handover)
        nursery.start_soon(reader.run)
        await wait_all_tasks_blocked()
        handover.ring()
        await wait_all_tasks_blocked()
        assert reader.batches == [0]
        assert handover.parked
        handover.close()
