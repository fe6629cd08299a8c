# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Where responses leave for the runtime: fetched by the pull arm, or pushed (see `compat.senders`).

Canary and in-process calls iterate the handler (pull); requests from the network bring a
``response_sender`` (push). Both arms are live in every worker (rules 115-117).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

import trio

Response = Any


class ConsumerLeft(Exception):
    """The consumer dropped the response stream (rule 115)."""


class Egress(Protocol):
    """The consumer's end of one request."""

    @property
    def waiting(self) -> int:
        """Responses that wait for the consumer or a carrier."""

    @property
    def backlogged(self) -> bool:
        """Whether the consumer is so far behind that chunks had better wait and merge."""

    @property
    def stuck_seconds(self) -> float:
        """How long the consumer has been keeping a carrier in one ``send``; 0: it does not."""

    def send(self, response: Response) -> None:
        """Trio or asyncio. Accept one response, in order; never blocks.

        Raises `ConsumerLeft` when nobody reads any more.
        """

    async def wait_room(self) -> None:
        """Trio. Until no longer backlogged. Raises `ConsumerLeft`."""

    async def finish(self) -> None:
        """Trio. Until the last response and the end of the stream have been accepted."""

    async def flush(self) -> None:
        """Trio. Until every response so far has been accepted, an error being about to follow."""

    def discard(self) -> None:
        """Trio or asyncio. Drop what waits; nothing is sent from here on."""


class PullEgress:
    """One response at a time for whoever iterates; an asyncio iterator."""

    __slots__ = ("_closed", "_room", "_waiter", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Response] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room = trio.Event()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Responses that wait to be fetched."""
        return len(self._waiting)

    @property
    def stuck_seconds(self) -> float:
        """Nobody blocks here."""
        return 0.0

    @property
    def backlogged(self) -> bool:
        """Whether a response waits to be fetched."""
        return bool(self._waiting)

    def send(self, response: Response) -> None:
        """Trio or asyncio. Keep `response` until it is fetched."""
        self._waiting.append(response)
        self._wake()

    async def wait_room(self) -> None:
        """Trio. Until everything has been fetched."""
        while self._waiting:
            self._room = trio.Event()
            await self._room.wait()

    async def finish(self) -> None:
        """Trio. End of stream: what waits is fetched before it."""
        self._closed = True
        self._wake()

    async def flush(self) -> None:
        """Trio. What waits is fetched before the error is raised: nothing to do."""

    def discard(self) -> None:
        """Trio or asyncio. End of stream; what waits stays ahead of it (rule 121)."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> PullEgress:
        return self

    async def __anext__(self) -> Response:
        """asyncio. The next response; ``StopAsyncIteration`` at the end of the stream."""
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        response = self._waiting.popleft()
        if not self._waiting:
            self._room.set()
        return response
