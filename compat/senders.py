# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Push egress: frames go to the runtime from a thread that may block.

``ResponseSender.send`` blocks the thread that calls it once 128 frames are queued, tells no
capacity, and is freed only when the client reads or leaves: called on the loop, one client that
stops reading freezes every stream of the worker (defect B24). So:

- the first frames of a request, fewer than the runtime's queue holds, are sent in place: they
  cannot block, and a short answer never meets a thread;
- later frames go to one *carrier* thread that serves all requests; it is told once a batch;
- a carrier that stays in one ``send`` for too long is *stuck*: it keeps only that request, in
  order, and hands the rest to a fresh carrier. There is at most one such thread per live request.

Counters say *accepted by the runtime*, not delivered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from compat.egress import ConsumerLeft, Response

logger = logging.getLogger(__name__)

IN_PLACE_FRAMES = 64
"""Frames of a request that are sent on the loop: half of what the runtime queues (128, C65)."""

STUCK_AFTER_S = 0.02
"""Seconds in one ``send`` after which a carrier gives up every request but that one."""

LOOK_EVERY_S = 0.01
"""Seconds between looks at the carrier while frames wait."""

CARRIER_STACK_BYTES = 256 * 1024

SPARE_CARRIERS = 2
"""Idle carriers kept for the next stall."""


class ResponseSender(Protocol):
    """``dynamo._core.ResponseSender``."""

    def send(self, response: Any) -> None: ...
    def close(self) -> None: ...


class _End:
    """Marks the end of a request's frames; its ``close`` runs in the sender, after the last."""


_END = _End()


@dataclass(slots=True)
class SenderStats:
    """What the carriers did and how they are."""

    frames_in_place: int = 0
    frames_carried: int = 0
    stuck: int = 0
    """Carriers that are inside one ``send`` for too long, now."""
    stuck_ever: int = 0
    carriers: int = 0


class Senders:
    """The carriers of one worker."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._fresh: list[PushEgress] = []
        """What became ready in this batch of the loop; the Trio thread's alone."""
        self._ready: deque[PushEgress] = deque()
        self._carrier: _Carrier | None = None
        self._idle = 0
        self._threadless = False
        """The system gives no thread."""
        self._busy = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self.stats = SenderStats()

    def open(self, sender: ResponseSender, backlog_frames: int) -> PushEgress:
        """asyncio. The push egress of one request."""
        return PushEgress(self, sender, backlog_frames)

    async def watch(self) -> None:
        """Trio. Take the queue from a stuck carrier; a service that runs until cancelled."""
        while True:
            await self._busy.wait()
            await trio.sleep(LOOK_EVERY_S)
            carrier = self._carrier
            if carrier is None:
                with self.lock:
                    if self._ready and self._carrier is None:
                        self._appoint()
                continue
            since = carrier.sending_since
            if since:
                if time.monotonic() - since > STUCK_AFTER_S:
                    self._relieve(carrier, since)
            elif carrier.waiting and not self._ready:
                self._busy = trio.Event()

    def _relieve(self, carrier: _Carrier, since: float) -> None:
        with self.lock:
            if self._carrier is carrier and carrier.sending_since == since:
                carrier.stuck = True
                self.stats.stuck += 1
                self.stats.stuck_ever += 1
                self._carrier = None
                if self._ready:
                    self._appoint()

    def _appoint(self) -> None:
        """With the lock held. See that somebody carries what is ready; `watch` tries again."""
        if self._idle:
            self._work.notify()
            return
        carrier = _Carrier(self)
        previous = threading.stack_size(CARRIER_STACK_BYTES)
        try:
            carrier.start()
        except RuntimeError as error:
            if not self._threadless:
                logger.error("Frames wait, there is no thread to carry them: %s", error)
            self._threadless = True
        else:
            self._carrier = carrier
            self._threadless = False
        finally:
            threading.stack_size(previous)

    def enqueue(self, egress: PushEgress) -> None:
        """Trio or asyncio. `egress` has frames to carry, and is not queued."""
        egress.queued = True
        fresh = self._fresh
        fresh.append(egress)
        if len(fresh) == 1:
            # Told at once, a carrier would ask for the interpreter all through the batch.
            self._token.run_sync_soon(self._hand_on)

    def _hand_on(self) -> None:
        """Trio. The carriers' turn."""
        fresh, self._fresh = self._fresh, []
        with self.lock:
            for egress in fresh:
                if egress.held:
                    # Its carrier looks at the frames once more before it lets go.
                    egress.queued = False
                else:
                    self._ready.append(egress)
            self._busy.set()
            if self._carrier is None:
                self._appoint()
            elif self._carrier.waiting:
                self._work.notify_all()

    def wake(self, event: trio.Event) -> None:
        """Carrier thread. Set a Trio event from outside Trio."""
        try:
            self._token.run_sync_soon(event.set)
        except trio.RunFinishedError:
            return


class _Carrier(threading.Thread):
    """One thread that sends; at any time at most one that is not stuck."""

    def __init__(self, senders: Senders) -> None:
        super().__init__(name="egress-carrier", daemon=True)
        self._senders = senders
        self.sending_since = 0.0
        self.waiting = False
        self.stuck = False

    def run(self) -> None:
        senders = self._senders
        senders.stats.carriers += 1
        try:
            while True:
                egress = self._next()
                if egress is None:
                    return
                self._carry(egress)
        finally:
            senders.stats.carriers -= 1

    def _next(self) -> PushEgress | None:
        senders = self._senders
        with senders.lock:
            if self.stuck:
                self.stuck = False
                senders.stats.stuck -= 1
            while True:
                if senders._carrier is None:
                    senders._carrier = self
                if senders._carrier is self and senders._ready:
                    egress = senders._ready.popleft()
                    egress.queued = False
                    egress.held = True
                    return egress
                if senders._carrier is not self and senders._idle >= SPARE_CARRIERS:
                    return None
                spare = senders._carrier is not self
                senders._idle += spare
                self.waiting = True
                senders._work.wait()
                self.waiting = False
                senders._idle -= spare

    def _carry(self, egress: PushEgress) -> None:
        lock = self._senders.lock
        egress.carrier = self
        while True:
            with lock:
                if not egress.frames:
                    egress.held = False
                    # Appended meanwhile by somebody who still saw it held: go on.
                    if not egress.frames:
                        egress.carrier = None
                        break
                    egress.held = True
                frame = egress.frames.popleft()
            self.sending_since = time.monotonic()
            egress.carry(frame)
            self.sending_since = 0.0
        egress.moved()


class PushEgress:
    """The frames of one request on their way to the runtime, in order."""

    __slots__ = (
        "_backlog_frames",
        "_discarded",
        "_ending",
        "_gone",
        "_in_place",
        "_moved",
        "_sender",
        "_senders",
        "accepted",
        "carrier",
        "frames",
        "held",
        "queued",
    )

    def __init__(self, senders: Senders, sender: ResponseSender, backlog_frames: int) -> None:
        self._senders = senders
        self._sender = sender
        self._backlog_frames = backlog_frames
        self._in_place = IN_PLACE_FRAMES
        self._gone = False
        self._discarded = False
        self._ending = False
        self._moved: trio.Event | None = None
        self.carrier: _Carrier | None = None
        """Who sends its frames right now."""
        self.frames: deque[Response | _End] = deque()
        self.queued = False
        """In the carriers' queue."""
        self.held = False
        """In a carrier's hands."""
        self.accepted = 0
        """Frames that the runtime has taken."""

    @property
    def backlogged(self) -> bool:
        """Whether more frames wait for a carrier than should."""
        return len(self.frames) > self._backlog_frames

    @property
    def waiting(self) -> int:
        """Frames that wait for a carrier."""
        return len(self.frames)

    @property
    def stuck_seconds(self) -> float:
        """How long one ``send`` has been blocking its carrier; 0 below `STUCK_AFTER_S`."""
        carrier = self.carrier
        since = 0.0 if carrier is None else carrier.sending_since
        seconds = time.monotonic() - since if since else 0.0
        return round(seconds, 3) if seconds > STUCK_AFTER_S else 0.0

    def send(self, response: Response) -> None:
        """Trio or asyncio. Send in place while that can't block, else leave it to a carrier."""
        if self._gone:
            raise ConsumerLeft
        if self._in_place:
            self._in_place -= 1
            self._senders.stats.frames_in_place += 1
            self._give(response)
            if self._gone:
                raise ConsumerLeft
            return
        self._carry_later(response)

    def _carry_later(self, frame: Response | _End) -> None:
        self.frames.append(frame)
        if not (self.queued or self.held):
            self._senders.enqueue(self)

    def carry(self, frame: Response | _End) -> None:
        """Carrier thread. Send one frame; may block for as long as the client likes."""
        self._senders.stats.frames_carried += 1
        if frame is _END:
            if not self._discarded:
                self._sender.close()
        elif not (self._gone or self._discarded):
            self._give(frame)

    def _give(self, response: Response) -> None:
        try:
            self._sender.send(response)
        except RuntimeError:
            # Rule 115: the consumer dropped the stream; the runtime has stopped the context.
            self._gone = True
            return
        self.accepted += 1

    def moved(self) -> None:
        """Carrier thread. Nothing waits any more."""
        event = self._moved
        if event is not None:
            self._senders.wake(event)

    async def wait_room(self) -> None:
        """Trio. Until the carrier has caught up. Raises `ConsumerLeft`."""
        await self._wait_empty()
        if self._gone:
            raise ConsumerLeft

    async def finish(self) -> None:
        """Trio. Until the last frame and ``close()`` have run in the sender (rule 121).

        Once cancelled, it may be waited for again.
        """
        if not self._ending:
            self._ending = True
            if self.frames or self.held:
                self._carry_later(_END)
            elif not self._gone:
                self._sender.close()
        await self._wait_empty()

    async def flush(self) -> None:
        """Trio. Until the runtime has taken every frame so far."""
        await self._wait_empty()

    async def _wait_empty(self) -> None:
        while self.frames or self.held:
            # Set by the carrier once empty; looked at again in case it was just before this line.
            self._moved = trio.Event()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._moved.wait()
        self._moved = None

    def discard(self) -> None:
        """Trio or asyncio. Nothing that still waits is sent."""
        self._discarded = True
        with self._senders.lock:
            self.frames.clear()
