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

        async def call(items: int, gap: float, got: list[int]) -> None:
            async for item in await client.generate({"items": items, "gap": gap}):
                got.append(item.data())
                first.set()

        first = trio.Event()
        got: list[int] = []
        await trio_asyncio.aio_as_trio(call)(3, 0, got)
        assert got == [0, 1, 2]
        print("served and called", flush=True)

        advertise = trio_asyncio.aio_as_trio(runtime.advertise)
        # Not the endpoint that is called below: a client that sees an instance go and come back at
        # once may still hold it for dead ("tombstoned").
        for wanted in (False, False, True, False):
            await advertise(clear, wanted)
        assert backend != "file" or len(shown()) == 1
        await advertise(clear, True)
        assert backend != "file" or len(shown()) == 2
        print("paused", flush=True)

        first = trio.Event()
        items: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio_asyncio.aio_as_trio(call), 20, 0.02, items)
            with trio.fail_after(10):
                await first.wait()
                await runtime.withdraw()
            assert shown() == []
            assert len(items) < 20
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
