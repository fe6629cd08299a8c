# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Control calls of an engine: each runs to its end, also when whoever asked has left.

SGLang pairs an answer with whoever waits for one: a caller that is cancelled half-way leaves its
answer to the next. A lock that is given back while its work goes on protects nothing either.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import outcome

from compat.feeders import Feeders

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EngineCloses(Exception):
    """The engine closed before a control call had ended."""


class ControlCalls:
    """Runs them as asyncio tasks that belong to the engine."""

    def __init__(self, feeders: Feeders) -> None:
        self._feeders = feeders

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """asyncio. The result of ``call()``, or its error, bare. Cancelled here, it goes on.

        Raises `EngineCloses` when the engine did not wait for it.
        """
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Seen here, for it may be that nobody waits for it any more.
        ended.add_done_callback(_retrieve)

        async def feed() -> None:
            try:
                result = await call()
            except asyncio.CancelledError:
                ended.set_exception(EngineCloses("the engine closes"))
            except Exception as error:
                ended.set_exception(error)
            else:
                ended.set_result(result)

        self._feeders.start(feed())
        return await asyncio.shield(ended)

    async def close(self, seconds: float) -> None:
        """Trio. Cancel all, wait at most `seconds` for them; what is left no longer holds us."""
        if left := await self._feeders.close(seconds):
            logger.warning("%d control calls left behind", left)


def _retrieve(ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        logger.debug("Control call failed: %r", error)


async def run_in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """asyncio. A blocking call in a thread of its own, which wakes us when it has ended.

    A cancellation waits for it, since it can't be interrupted, and whatever is locked meanwhile
    stays so. In place of ``dynamo.sglang.engine_routes._run_in_thread``, which asks every 10 ms.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[outcome.Outcome[T]] = loop.create_future()

    def work() -> None:
        result = outcome.capture(function, *args, **kwargs)
        with suppress(RuntimeError):  # the loop has closed: everybody has left
            loop.call_soon_threadsafe(ended.set_result, result)

    # Not a pool's: there, a call that hangs would keep others from running.
    threading.Thread(target=work, name="control-call", daemon=True).start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    try:
        return ended.result().unwrap()
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"the call ended with {error!r}") from error
