# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Serves and calls two endpoints of a real Dynamo runtime on our loop; prints what was seen.

A process of its own for `test_loop_runtime.py`: the runtime keeps its threads until the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import trio
from dynamo.runtime import Context, DistributedRuntime
from trio_asyncio import aio_as_trio, current_loop

from compat.loop import WorkerLoop, open_loop

seen: dict[str, Any] = {}


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return number * 2


class Handlers:
    def __init__(self, loop: WorkerLoop, nursery: trio.Nursery) -> None:
        self.loop = loop
        self.nursery = nursery
        self.stopped = trio.Event()

    async def pull(self, request: dict[str, int], context: Context) -> AsyncIterator[Any]:
        """A frame a time, each with a call into Trio."""
        seen["context is empty"] = current_loop.get() is None
        seen["running loop"] = asyncio.get_running_loop() is self.loop
        for number in range(request["count"]):
            yield {"number": await self.loop.trio_as_future(double, number)}

    async def push(
        self, request: dict[str, int], context: Context, response_sender: Any
    ) -> AsyncIterator[Any]:
        """All frames from a Trio task in the worker's own tree."""
        outcome = self.loop.create_future()

        async def request_task() -> None:
            assert asyncio.get_running_loop() is self.loop
            for number in range(request["count"]):
                await aio_as_trio(asyncio.sleep)(0)
                response_sender.send({"number": number})
            response_sender.close()
            outcome.set_result(None)

        self.loop.base_context.run(self.nursery.start_soon, request_task)
        await outcome
        return
        yield

    async def endless(self, request: dict[str, int], context: Context) -> AsyncIterator[Any]:
        """Ends when the client stops it."""
        stop = context.async_killed_or_stopped()
        stop.add_done_callback(lambda _: self.stopped.set())
        yield {"number": 0}
        await stop


async def collect(endpoint: Any, count: int) -> list[int]:
    client = await endpoint.client()
    await client.wait_for_instances()
    stream = await client.generate({"count": count})
    return [item.data()["number"] async for item in stream]


async def stop_after_first(endpoint: Any) -> None:
    client = await endpoint.client()
    await client.wait_for_instances()
    context = Context()
    async for _ in await client.generate({"count": 1}, context=context):
        context.stop_generating()


async def main() -> None:
    with trio.fail_after(50):
        async with open_loop() as loop, trio.open_nursery() as nursery:
            handlers = Handlers(loop, nursery)
            # From a Trio task: the bridge finds the loop by itself.
            runtime = DistributedRuntime(loop, "mem", "tcp")
            served = []
            for name in ("pull", "push", "endless"):
                endpoint = runtime.endpoint(f"tests.loop.{name}")
                served.append(endpoint.serve_endpoint(getattr(handlers, name)))
                if name == "endless":
                    await loop.run_aio_coroutine(stop_after_first(endpoint))
                    await handlers.stopped.wait()
                    seen[name] = "stopped"
                else:
                    seen[name] = await loop.run_aio_coroutine(collect(endpoint, 300))
            runtime.shutdown()
            for future in served:
                await loop.run_aio_future(future)
            seen["served"] = len(served)
    seen["unhandled"] = loop.unhandled_errors
    print(json.dumps(seen))


if __name__ == "__main__":
    trio.run(main)
