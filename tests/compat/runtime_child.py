# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Started by test_runtime.py: the real ``DistributedRuntime`` from serving to gone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio_asyncio

from compat.loop import open_loop
from compat.runtime import open_runtime


async def count(request: Any, context: Any = None) -> AsyncIterator[int]:
    """asyncio. As many items as asked for."""
    for number in range(request["items"]):
        await asyncio.sleep(request.get("gap", 0))
        yield number


def shown() -> list[str]:
    """Files of file discovery; with ``mem`` there are none to see."""
    root = Path(os.environ["DYN_FILE_KV"], "v1", "instances")
    return sorted(path.name for path in root.glob("*"))


async def main(backend: str) -> None:
    """Trio."""
    config = SimpleNamespace(
        discovery_backend=backend, request_plane="tcp", event_plane="zmq", response_plane="tcp"
    )
    async with open_loop() as loop, open_runtime(loop, config, drain_seconds=5) as runtime:
        generate = runtime.endpoint("ns.comp.generate")
        clear = runtime.endpoint("ns.comp.clear_kv_blocks")
        runtime.serve(generate, count)
        runtime.serve(clear, count)
        client = await runtime.call(generate.client)
        await runtime.call(client.wait_for_instances)

        async def call(items: int, gap: float) -> list[int]:
            stream = await client.generate({"items": items, "gap": gap})
            return [item.data() async for item in stream]

        assert await trio_asyncio.aio_as_trio(call)(3, 0) == [0, 1, 2]
        print("served and called", flush=True)

        advertise = trio_asyncio.aio_as_trio(runtime.advertise)
        for wanted in (False, False, True, False):
            await advertise(generate, wanted)
        assert backend != "file" or len(shown()) == 1
        await advertise(generate, True)
        assert backend != "file" or len(shown()) == 2
        print("paused", flush=True)

        items: list[int] = []
        async with trio.open_nursery() as nursery:

            async def in_flight() -> None:
                items.extend(await trio_asyncio.aio_as_trio(call)(20, 0.02))

            # Instances come back to a client a little later.
            await runtime.call(client.wait_for_instances)
            nursery.start_soon(in_flight)
            await trio.sleep(0.1)
            with trio.fail_after(5):
                await runtime.withdraw()
            assert shown() == []
        print(f"in flight survives withdrawal: {len(items)} items", flush=True)
        print("withdrawn", flush=True)

        assert not runtime.lost.is_set()
        runtime.shutdown(2.0)
        with trio.fail_after(5):
            await runtime.wait_served()
            print("stopped", flush=True)
            await runtime.wait_gone()
        print("gone", flush=True)
        # As the worker does: no interpreter teardown with the runtime's threads alive.
        os._exit(0)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
