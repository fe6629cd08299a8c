# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""compat.feeders: closing ends within its bound, whatever the feeders do."""

from __future__ import annotations

import asyncio

import trio
from trio.testing import MockClock

from compat import loop as loop_module
from compat.feeders import Feeders
from compat.loop import open_loop


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def resists(seconds: float) -> None:
    """Swallows every cancellation until `seconds` have passed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        try:
            await asyncio.sleep(end - loop.time())
        except asyncio.CancelledError:
            continue


async def test_close_ends_with_the_last_feeder(autojump_clock: MockClock) -> None:
    async with open_loop() as loop:
        feeders = Feeders(loop)
        for _ in range(3):
            feeders.start(forever())
        await trio.sleep(0.1)
        began = trio.current_time()
        assert await feeders.close(1.0) == 0
        assert trio.current_time() == began
        await loop.synchronize()
        assert len(feeders) == 0


async def test_close_does_not_spin_on_a_task_whose_callbacks_have_not_run(
    autojump_clock: MockClock,
) -> None:
    """A done task stays among the feeders for one more pass of the loop."""
    async with open_loop() as loop:
        feeders = Feeders(loop)
        task = loop.create_task(asyncio.sleep(0))
        await trio.sleep(0.1)
        assert task.done()
        feeders._tasks.add(task)
        with trio.fail_after(5):
            assert await feeders.close(1.0) == 0


async def test_close_leaves_behind_what_resists(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with open_loop() as loop:
        feeders = Feeders(loop)
        feeders.start(forever())
        feeders.start(resists(1000.0))
        await trio.sleep(0.1)
        assert await feeders.close(1.0) == 1
        assert trio.current_time() - began == 1.1
    # The loop has not waited for it either.
    assert trio.current_time() - began < 1.1 + loop_module.CLOSE_SECONDS
