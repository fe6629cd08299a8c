# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Waiting for asyncio futures from Trio, in a way that can always be left.

`trio_asyncio.run_aio_future` cancels the future and then stays until it is really done. A future
of the Dynamo runtime may take 25 s for that, a coroutine that ignores cancellation for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from compat.runtime_errors import RuntimeTooSlow, RuntimeTrouble

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def settle(awaitable: Awaitable[T]) -> T:
    """Trio. The result of an asyncio future or coroutine, or its error, bare.

    Cancelled here, cancels it and goes. One that somebody else cancelled raises `RuntimeTrouble`:
    asyncio's ``CancelledError`` would be a stranger among Trio tasks.
    """
    future = asyncio.ensure_future(awaitable)
    task = trio.lowlevel.current_task()
    left = False

    def wake(_future: asyncio.Future[T]) -> None:
        if not left:
            trio.lowlevel.reschedule(task)
        elif not future.cancelled() and (error := future.exception()) is not None:
            logger.debug("Late error of a call that nobody waits for any more: %r", error)

    def leave(_raise_cancel: Any) -> trio.lowlevel.Abort:
        nonlocal left
        left = True
        future.cancel()
        return trio.lowlevel.Abort.SUCCEEDED

    future.add_done_callback(wake)
    await trio.lowlevel.wait_task_rescheduled(leave)
    if future.cancelled():
        raise RuntimeTrouble("a call was cancelled by somebody else")
    return future.result()


async def until_done(future: asyncio.Future[Any]) -> None:
    """Trio. Until `future` is done, however it ends. Leaving does not cancel it."""
    done = trio.Event()
    future.add_done_callback(lambda _future: done.set())
    await done.wait()


async def within(seconds: float, make_future: Callable[[], Awaitable[T]], what: str) -> T:
    """Trio. Call `make_future` and wait for what it returns, at most `seconds`.

    `make_future` runs here, on the loop's thread, where Rust finds the running loop; it returns an
    asyncio future or a coroutine. Raises what the call raises, or `RuntimeTooSlow`, which says
    `what` did not answer.
    """
    with trio.move_on_after(seconds):
        return await settle(make_future())
    raise RuntimeTooSlow(f"{what}: no answer for {seconds:g} s")
