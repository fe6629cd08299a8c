# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""compat.senders: order, no blocking on the loop, a stuck client delays only its own request."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.lowlevel

from compat import senders as module
from compat.egress import ConsumerLeft
from compat.senders import IN_PLACE_FRAMES, PushEgress, Senders


class Sender:
    """The runtime's sender: blocks while its client does not read."""

    def __init__(self, *, depth: int = 128) -> None:
        self.frames: list[Any] = []
        self.threads: set[int] = set()
        self.closed_after: int | None = None
        self.lost = False
        self._room = threading.Semaphore(depth)
        self.blocked = threading.Event()

    def send(self, frame: Any) -> None:
        if self.lost:
            raise RuntimeError("response stream is closed; the consumer dropped the stream")
        if not self._room.acquire(blocking=False):
            self.blocked.set()
            self._room.acquire()
        self.threads.add(threading.get_ident())
        self.frames.append(frame)

    def close(self) -> None:
        self.closed_after = len(self.frames)

    def read(self, frames: int) -> None:
        for _ in range(frames):
            self._room.release()


@pytest.fixture
async def senders() -> AsyncIterator[Senders]:
    owner = Senders()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.watch)
        yield owner
        nursery.cancel_scope.cancel()


async def finish(egress: PushEgress) -> None:
    with trio.fail_after(10):
        await egress.finish()


async def test_first_frames_are_sent_in_place(senders: Senders) -> None:
    sender = Sender()
    egress = senders.open(sender, 32)
    for number in range(IN_PLACE_FRAMES):
        egress.send(number)
    assert sender.frames == list(range(IN_PLACE_FRAMES))
    assert sender.threads == {threading.get_ident()}
    assert senders.stats.carriers == 0
    await finish(egress)
    assert sender.closed_after == IN_PLACE_FRAMES


async def test_order_is_kept_across_the_change_to_a_carrier(senders: Senders) -> None:
    sender = Sender(depth=10_000)
    egress = senders.open(sender, 32)
    for number in range(1000):
        egress.send(number)
        if number % 50 == 0:
            await trio.lowlevel.checkpoint()
    await finish(egress)
    assert sender.frames == list(range(1000))
    assert sender.closed_after == 1000
    assert egress.accepted == 1000


async def test_frames_wait_for_a_thread_that_the_system_does_not_give(
    senders: Senders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = iter(range(3))
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if next(refusals, None) is not None:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(module._Carrier, "start", refuse)
    sender = Sender(depth=10_000)
    egress = senders.open(sender, 32)
    for number in range(IN_PLACE_FRAMES + 40):
        egress.send(number)
    await finish(egress)
    assert sender.frames == list(range(IN_PLACE_FRAMES + 40))
    assert sender.closed_after == IN_PLACE_FRAMES + 40
    assert [record.getMessage() for record in caplog.records] == [
        "Frames wait, there is no thread to carry them: can't start new thread"
    ]


async def test_rule_132_a_stuck_client_delays_only_its_own_request(senders: Senders) -> None:
    stuck = Sender(depth=IN_PLACE_FRAMES + 1)
    others = [Sender(depth=10_000) for _ in range(8)]
    stuck_egress = senders.open(stuck, 32)
    egresses = [senders.open(sender, 32) for sender in others]
    for number in range(IN_PLACE_FRAMES + 40):
        stuck_egress.send(number)
    for number in range(500):
        for egress in egresses:
            egress.send(number)
        if number % 20 == 0:
            await trio.lowlevel.checkpoint()
    for egress, sender in zip(egresses, others, strict=True):
        await finish(egress)
        assert sender.frames == list(range(500))
    assert stuck_egress.backlogged
    assert senders.stats.stuck == 1
    # It reads again: nothing is lost, order is kept.
    stuck.read(1000)
    await finish(stuck_egress)
    assert stuck.frames == list(range(IN_PLACE_FRAMES + 40))
    assert stuck.closed_after == len(stuck.frames)


async def test_many_stuck_clients_need_a_thread_each_and_no_more(senders: Senders) -> None:
    stuck = [Sender(depth=IN_PLACE_FRAMES) for _ in range(5)]
    egresses = [senders.open(sender, 32) for sender in stuck]
    for egress in egresses:
        for number in range(IN_PLACE_FRAMES + 3):
            egress.send(number)
    with trio.fail_after(10):
        while senders.stats.stuck < len(stuck):
            await trio.sleep(0.01)
    assert senders.stats.carriers <= len(stuck) + 1
    for sender, egress in zip(stuck, egresses, strict=True):
        sender.read(100)
        await finish(egress)
        assert sender.frames == list(range(IN_PLACE_FRAMES + 3))
    with trio.fail_after(10):
        while senders.stats.carriers > module.SPARE_CARRIERS + 1:
            await trio.sleep(0.01)
    assert senders.stats.stuck == 0


async def test_rule_115_a_lost_consumer_is_told_on_the_next_send(senders: Senders) -> None:
    sender = Sender()
    egress = senders.open(sender, 32)
    egress.send(0)
    sender.lost = True
    with pytest.raises(ConsumerLeft):
        egress.send(1)
    with pytest.raises(ConsumerLeft):
        egress.send(2)
    await finish(egress)
    assert sender.closed_after is None


async def test_rule_121_nothing_is_sent_after_discard(senders: Senders) -> None:
    sender = Sender(depth=IN_PLACE_FRAMES)
    egress = senders.open(sender, 32)
    for number in range(IN_PLACE_FRAMES + 50):
        egress.send(number)
    with trio.fail_after(10):
        while not sender.blocked.is_set():
            await trio.sleep(0.01)
    egress.discard()
    sender.read(1000)
    with trio.fail_after(10):
        await egress.flush()
    # The one frame that was inside send() when we discarded is all that may follow.
    assert sender.frames == list(range(IN_PLACE_FRAMES + 1))


async def test_wait_room_ends_when_the_carrier_has_caught_up(senders: Senders) -> None:
    sender = Sender(depth=IN_PLACE_FRAMES)
    egress = senders.open(sender, 4)
    for number in range(IN_PLACE_FRAMES + 20):
        egress.send(number)
    assert egress.backlogged
    async with trio.open_nursery() as nursery:
        nursery.start_soon(egress.wait_room)
        await trio.sleep(0.05)
        assert nursery.child_tasks
        sender.read(100)
    assert not egress.backlogged
    await finish(egress)
