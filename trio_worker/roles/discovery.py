# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Discovery follows what an engine can do now: hidden while SGLang is paused, shown again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from compat.futures import within

logger = logging.getLogger(__name__)

FOLLOW_S: Final = 10.0
"""Seconds for one change in discovery; also what a control call waits for it."""

RETRY_S: Final = 1.0


class DiscoveryFollower:
    """One task makes all changes, one after the other, and tries again until one works.

    Whoever pauses or resumes, here or in another process of the same engine, only says that there
    is something to follow.
    """

    def __init__(self, follow: Callable[[], Awaitable[None]]) -> None:
        """`follow` (asyncio) makes discovery what it should be now; idempotent."""
        self._follow = follow
        self._asked = 0
        self._followed = 0
        self._news = trio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def poke(self) -> int:
        """Trio or asyncio. Something has changed; the number to wait for."""
        self._asked += 1
        self._news.set()
        return self._asked

    async def run(self) -> None:
        """Trio. A service: follow until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            number = self._asked
            try:
                await within(FOLLOW_S, self._follow, "discovery")
            except Exception as error:
                logger.warning("Discovery does not follow the engine's pause state: %s", error)
                with trio.move_on_after(RETRY_S):
                    await self._news.wait()
                self._news.set()
            else:
                self._followed = number
                self._wake()

    def _wake(self) -> None:
        still = []
        for number, waiter in self._waiters:
            if number > self._followed:
                still.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still

    async def wait_followed(self, number: int) -> bool:
        """asyncio. Until that change has been followed; False if it takes too long."""
        if number <= self._followed:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((number, waiter))
        try:
            async with asyncio.timeout(FOLLOW_S):
                await waiter
        except TimeoutError:
            return False
        return True
