# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's stream reading with one reader task a request instead of one a chunk.

Written from the description in the semantics (rules 54 to 57), for the bench only: the fair
opponent, since the incumbent's own fix of its cost per chunk is a pull request away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from dynamo.sglang.request_handlers import cancellation

_END = object()


async def stream_until_cancelled(
    stream_source: AsyncIterator[Any], cancellation_task: asyncio.Task[Any]
) -> AsyncGenerator[Any, None]:
    """asyncio. Demand-driven: the reader takes an item only when one is asked for."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    slot: asyncio.Future[Any] = loop.create_future()

    async def read() -> None:
        iterator = aiter(stream_source)
        while True:
            await asked.wait()
            asked.clear()
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                item = _END
            except BaseException as error:
                if not slot.done():
                    slot.set_exception(error)
                raise
            if not slot.done():
                slot.set_result(item)
            if item is _END:
                return

    def on_cancellation(_task: asyncio.Task[Any]) -> None:
        if not slot.done():
            slot.set_result(None)

    reader = loop.create_task(read())
    cancellation_task.add_done_callback(on_cancellation)
    deadline: float | None = None
    try:
        while True:
            slot = loop.create_future()
            asked.set()
            if cancellation_task.done() and deadline is None:
                cancellation_task.result()
                deadline = loop.time() + cancellation._CANCELLATION_DRAIN_TIMEOUT_S
            if deadline is None:
                item = await slot
            else:
                try:
                    async with asyncio.timeout_at(deadline):
                        item = await slot
                except TimeoutError:
                    return
            if item is _END:
                return
            if item is not None:
                yield item
    finally:
        cancellation_task.remove_done_callback(on_cancellation)
        if not reader.done():
            cancellation._cancel_and_detach(reader)


async def method(
    _handler: Any, stream_source: AsyncIterator[Any], cancellation_task: asyncio.Task[Any]
) -> AsyncGenerator[Any, None]:
    """asyncio. In the place of ``CancellationMixin._stream_until_cancelled``."""
    async for item in stream_until_cancelled(stream_source, cancellation_task):
        yield item
