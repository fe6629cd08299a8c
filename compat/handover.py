# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""How one request's chunks cross from SGLang's asyncio side to its Trio reader.

The channel holds one item, a doorbell; what is pending stays where it is until the reader takes
all of it. While the reader is *parked* (it has nothing left to do and waits), a chunk is not
queued at all: ``deliver`` runs in place, and only the wake-up is saved. End of stream is the
doorbell's channel closing.

"Is the channel empty" would be the wrong test for in-place delivery: an item handed to a waiting
reader is already out of the channel, and a later chunk would overtake it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import trio

logger = logging.getLogger(__name__)

Chunk = dict[str, Any]


class Source(Protocol):
    """Where outputs wait that nobody has handed over yet (the tap)."""

    def take(self) -> list[Chunk]:
        """Remove and return what waits; empty when the rest belongs to SGLang's own path."""


class Handover:
    """One request's chunks. The writers are asyncio code, the only reader is a Trio task.

    ``deliver`` is called with one chunk, in place, from SGLang's receive loop; it must not block.
    Whatever it raises becomes the stream's error: nothing leaves ``put`` or ``deliver_in_place``
    (rule 120).
    """

    __slots__ = (
        "_bell",
        "_doorbell",
        "_error",
        "_left",
        "_merge_at",
        "_pending",
        "_rung",
        "deliver",
        "merge",
        "parked",
        "tap",
    )

    def __init__(self, merge_at: int) -> None:
        self._doorbell, self._bell = trio.open_memory_channel[None](1)
        self._rung = False
        self._pending: list[Chunk] = []
        self._error: BaseException | None = None
        self._left = False
        self._merge_at = merge_at
        self.merge: Callable[[list[Chunk]], list[Chunk]] | None = None
        """How waiting chunks are merged once there are more than `merge_at`."""
        self.deliver: Callable[[Chunk], None] | None = None
        self.parked = False
        self.tap: Source | None = None

    # ---- writers: asyncio ----

    def put(self, chunk: Chunk) -> None:
        """asyncio. Hand over one chunk; never blocks, never raises."""
        if self.parked:
            self.deliver_in_place(chunk)
            return
        if self._left:
            return
        pending = self._pending
        pending.append(chunk)
        if len(pending) > self._merge_at and self.merge is not None:
            self._pending = self.merge(pending)
        self.ring()

    def deliver_in_place(self, chunk: Chunk) -> None:
        """asyncio. Run the parked reader's ``deliver``; its error ends the stream."""
        assert self.deliver is not None
        try:
            self.deliver(chunk)
        except BaseException as error:
            self.fail(error)

    def ring(self) -> None:
        """asyncio or Trio. Wake the reader once; chunks queue behind the bell from here on."""
        self.parked = False
        if not self._rung:
            self._rung = True
            try:
                self._doorbell.send_nowait(None)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the reader has left or the stream has ended: nobody to wake

    def fail(self, error: BaseException) -> None:
        """asyncio. End the stream with `error`, behind what was put before (rule 121)."""
        if self._left:
            # Rule 49: the request is gone, its feeder's trouble still has to be seen.
            logger.error("Detached SGLang task failed during cancellation", exc_info=error)
            return
        if self._error is None:
            self._error = error
        self.ring()

    def close(self) -> None:
        """asyncio. End of stream."""
        self.parked = False
        self._doorbell.close()

    # ---- the reader: Trio ----

    async def receive(self) -> list[Chunk]:
        """Trio. Wait for chunks and take all that wait, in order.

        Nothing waits where the bell was rung for something else: the reader has to look at what
        it sends to, before it parks again. Raises `trio.EndOfChannel` at the end of the stream,
        and what the feeder or ``deliver`` raised, bare.
        """
        woken = False
        while True:
            if self._pending or self.tap is not None:
                taken = self._take()
                if taken:
                    return taken
            if self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error
            if woken:
                return []
            self.parked = self.deliver is not None
            try:
                await self._bell.receive()
            finally:
                self.parked = False
            self._rung = False
            woken = True

    def _take(self) -> list[Chunk]:
        taken = self.tap.take() if self.tap is not None else []
        if self._pending:
            taken += self._pending
            self._pending = []
        return taken

    def leave(self) -> None:
        """Trio. The reader goes away: what comes later is dropped, a late error is logged."""
        self._left = True
        self.parked = False
        self.deliver = None
        self.merge = None
        self.tap = None
        self._pending = []
        self._error = None
        self._bell.close()

    @property
    def failed(self) -> bool:
        """Whether an error waits behind what is pending."""
        return self._error is not None

    @property
    def backlog(self) -> int:
        """Chunks that wait here (not those that a tap has left with SGLang)."""
        return len(self._pending)
