# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One task follows, one change at a time, until it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing
import trio_asyncio

from compat.loop import open_loop
from trio_worker.roles.discovery import FOLLOW_S, RETRY_S, DiscoveryFollower


@dataclass
class Backend:
    """Takes `seconds` for a change; the first `failing` ones fail."""

    seconds: float = 0.0
    failing: int = 0
    paused: bool = False
    shown: list[bool] = field(default_factory=list)
    running: int = 0

    async def follow(self) -> None:
        assert self.running == 0
        self.running += 1
        try:
            await asyncio.sleep(self.seconds)
            if self.failing:
                self.failing -= 1
                raise OSError("discovery is away")
            self.shown.append(not self.paused)
        finally:
            self.running -= 1


@asynccontextmanager
async def following(backend: Backend) -> AsyncIterator[DiscoveryFollower]:
    async with open_loop(), trio.open_nursery() as nursery:
        follower = DiscoveryFollower(backend.follow)
        nursery.start_soon(follower.run)
        yield follower
        nursery.cancel_scope.cancel()


async def followed(follower: DiscoveryFollower) -> bool:
    """Trio. As a control call does it."""
    return bool(await trio_asyncio.aio_as_trio(follower.wait_followed)(follower.poke()))


async def test_a_change_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    backend = Backend(seconds=2.0)
    async with following(backend) as follower:
        began = trio.current_time()
        backend.paused = True
        assert await followed(follower)
        assert trio.current_time() - began == 2.0
    assert backend.shown == [False]


async def test_news_while_a_change_is_made_is_followed_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend = Backend(seconds=2.0)
    async with following(backend) as follower:
        backend.paused = True
        follower.poke()
        await trio.sleep(1)
        backend.paused = False
        # Three at once are one.
        for _ in range(3):
            follower.poke()
        assert await followed(follower)
    assert backend.shown[-1] is True
    assert len(backend.shown) == 2


async def test_a_failure_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    backend = Backend(failing=3)
    async with following(backend) as follower:
        began = trio.current_time()
        assert await followed(follower)
        assert trio.current_time() - began == 3 * RETRY_S
    assert backend.shown == [True]


async def test_a_caller_does_not_wait_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    backend = Backend(seconds=float("inf"))
    async with following(backend) as follower:
        began = trio.current_time()
        assert not await followed(follower)
        assert trio.current_time() - began == FOLLOW_S
        # One that hangs is given up, and the next has its chance.
        backend.seconds = 0.0
        assert await followed(follower)


async def test_a_caller_that_leaves_is_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    backend = Backend(seconds=5.0)
    async with following(backend) as follower:
        with trio.move_on_after(1):
            await followed(follower)
        await trio.sleep(10)
        assert follower._waiters == []
