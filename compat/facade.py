# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The face that the runtime calls: an asyncio async generator over a Trio request.

With a ``response_sender`` the generator is advanced once and yields nothing (push, rule 116);
without one it yields each response (pull). No scope and no nursery is held across a yield.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from compat.egress import PullEgress, Response
from compat.senders import ResponseSender, Senders


class Admitted(Protocol):
    """One admitted request, seen from asyncio."""

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the request has ended, whatever the outcome."""

    def take_outcome(self) -> None:
        """Raise the outcome, bare and typed, or return."""

    def drop_outcome(self) -> None:
        """Nobody will ask for the outcome."""

    def abandon(self) -> None:
        """End the request: whoever asked is gone without a word."""


Admit = Callable[[dict[str, Any], Any, Any], Admitted]
"""``admit(request, context, egress)``; raises what must leave before submission (rule 124)."""


class Facade:
    """``generate`` of one endpoint."""

    def __init__(self, admit: Admit, senders: Senders, backlog_frames: int) -> None:
        self._admit = admit
        self._senders = senders
        self._backlog_frames = backlog_frames

    def generate(
        self,
        request: dict[str, Any],
        context: Any = None,
        response_sender: ResponseSender | None = None,
    ) -> AsyncGenerator[Response, None]:
        """Called by the runtime, on a thread of its own; the body runs on the loop.

        The runtime pushes iff this signature shows ``response_sender``.
        """
        if response_sender is None:
            return self._pull(request, context)
        return self._push(request, context, response_sender)

    async def _push(
        self, request: dict[str, Any], context: Any, sender: ResponseSender
    ) -> AsyncGenerator[Response, None]:
        egress = self._senders.open(sender, self._backlog_frames)
        live = self._admit(request, context, egress)
        await _ended(live)
        live.take_outcome()
        return
        yield  # makes this an async generator: the runtime calls __anext__

    async def _pull(self, request: dict[str, Any], context: Any) -> AsyncGenerator[Response, None]:
        egress = PullEgress()
        live = self._admit(request, context, egress)
        try:
            async for response in egress:
                yield response
            await _ended(live)
            live.take_outcome()
        except asyncio.CancelledError:
            await _leave(live)
            raise
        finally:
            # Dropped between two responses: the runtime never calls aclose() (C60), so this
            # may run from the garbage collector and must not await.
            live.abandon()
            live.drop_outcome()


async def _ended(live: Admitted) -> None:
    """asyncio. Wait for the end; cancelled, end the request first and then re-raise (rule 131)."""
    try:
        await asyncio.shield(live.ended)
    except asyncio.CancelledError:
        await _leave(live)
        raise


async def _leave(live: Admitted) -> None:
    """asyncio. End the request and wait for that; a worker shutdown has precedence (rule 60)."""
    live.abandon()
    await _settled(live.ended)
    live.take_outcome()


async def _settled(future: asyncio.Future[None]) -> None:
    """asyncio. Wait for `future` through any number of cancellations; it ends within a bound."""
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            continue
