# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Push egress without threads: a carrier is a Trio task here, and a blocked ``send`` is virtual.

`PushEgress` is the real one. What is replaced is `Senders` with its carrier threads, and the
runtime's sender, whose ``send`` would block a thread: here the carrier waits for room before it
calls. The hand-over between threads (the lock, a stuck carrier that gives up its other requests)
is therefore not simulated; ``tests/compat/test_senders.py`` runs the real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import trio

from compat.egress import Response
from compat.senders import _END, PushEgress, SenderStats
from tests.fakes.context import SENDER_CLOSED, SENDER_LOST, FakeContext
from tests.fakes.journal import Journal

from .case import Consumer


class Channel:
    """``ResponseSender`` and the runtime's queue behind it, with a client that reads.

    Frames count as delivered when they are accepted, as in the runtime; not after the handler has
    returned, when the runtime loses them in silence (DESIGN §4.5).
    """

    def __init__(
        self,
        journal: Journal,
        context: FakeContext,
        consumer: Consumer,
        on_frame: Callable[[Any], None],
    ) -> None:
        self._journal = journal
        self._context = context
        self._consumer = consumer
        self._on_frame = on_frame
        self._changed = trio.Event()
        self._unread = 0
        self.lost = False
        self.closed = False
        self.over = False
        """The handler has returned."""
        self.carried = False
        """A carrier is sending, not the loop."""
        self.faults: list[str] = []

    # ---- the worker's side ----

    def send(self, frame: Any) -> None:
        if self.lost:
            self._context.stop()
            raise RuntimeError(SENDER_LOST)
        if self.closed:
            self.faults.append("send() after close()")
            raise RuntimeError(SENDER_CLOSED)
        if self._unread >= self._consumer.depth:
            self.faults.append("send() would have blocked its thread")
        if self.over:
            return
        if self._consumer.every or self._consumer.stalls_after is not None:
            self._unread += 1
            self._change()
        self._on_frame(frame)

    def close(self) -> None:
        self._journal.record("worker", "response closed", detail=self._context.id())
        if self.over:
            self.faults.append("close() after the handler returned")
        self.closed = True

    @property
    def full(self) -> bool:
        """Whether ``send`` would block now."""
        return self._unread >= self._consumer.depth and not self.lost

    async def room(self) -> None:
        """Trio. As long as ``send`` would block."""
        while self.full:
            await self._changed.wait()

    # ---- the client's side ----

    async def read(self) -> None:
        """Trio. Take frames as the consumer does, for ever."""
        consumer = self._consumer
        taken = 0
        while True:
            while not self._unread:
                await self._changed.wait()
            if taken == consumer.stalls_after:
                await trio.sleep(max(0.0, consumer.stalls_until - self._journal.now()))
            if consumer.every:
                await trio.sleep(consumer.every)
            self._unread -= 1
            taken += 1
            self._change()

    def lose(self) -> None:
        """Trio or asyncio. The consumer drops the response stream."""
        self.lost = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class VirtualSenders:
    """Stands in for `compat.senders.Senders`: a Trio task carries one request's frames."""

    def __init__(self, nursery: trio.Nursery, pick_up: float) -> None:
        self.lock = threading.Lock()
        self.stats = SenderStats()
        self._nursery = nursery
        self._pick_up = pick_up
        self._token = trio.lowlevel.current_trio_token()

    def open(self, sender: Channel, backlog_frames: int) -> PushEgress:
        """asyncio. The push egress of one request."""
        return PushEgress(self, sender, backlog_frames)  # type: ignore[arg-type]

    def enqueue(self, egress: PushEgress) -> None:
        """Trio or asyncio."""
        if egress.queued or egress.held:
            return
        egress.queued = True
        self._nursery.start_soon(self._carry, egress)

    def wake(self, event: trio.Event) -> None:
        """As from a thread: the event is set a little later."""
        self._token.run_sync_soon(event.set)

    async def _carry(self, egress: PushEgress) -> None:
        await trio.sleep(self._pick_up)
        egress.queued = False
        egress.held = True
        while egress.frames:
            await self._send(egress, egress.frames.popleft())
        egress.held = False
        egress.moved()

    @staticmethod
    async def _send(egress: PushEgress, frame: Response) -> None:
        channel: Any = egress._sender
        blocked = channel.full and frame is not _END and not (egress._gone or egress._discarded)
        if blocked:
            await channel.room()
        channel.carried = True
        try:
            if blocked:
                # It was inside send(): what is discarded meanwhile can't be taken back from there.
                egress._give(frame)
            else:
                egress.carry(frame)
        finally:
            channel.carried = False
