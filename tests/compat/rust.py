# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A fake of ai-dynamo-runtime's Rust side, as asyncio sees it (loop-contract §5).

A call finds the running loop, creates a future of it and returns at once; the result comes by
``call_soon_threadsafe``, from another thread or after a delay on the loop's own clock; cancelling
the future cancels the work behind it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


class Work:
    """What stands behind one future."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.future.add_done_callback(self._note)
        self.cancelled = False

    def _note(self, future: asyncio.Future[Any]) -> None:
        self.cancelled = future.cancelled()

    def resolve(self, result: Any = ()) -> None:
        """From any thread. Serve futures resolve with an empty tuple."""
        self.loop.call_soon_threadsafe(self._set, result)

    def _set(self, result: Any) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def resolve_from_thread(self, result: Any = ()) -> Work:
        """A tokio thread has the result at once."""
        threading.Thread(target=self.resolve, args=(result,)).start()
        return self

    def resolve_after(self, seconds: float, result: Any = ()) -> Work:
        """The result comes after `seconds` of the loop's clock (virtual ones, in most tests)."""
        self.loop.call_later(seconds, self._set, result)
        return self


class FakeEndpoint:
    """One endpoint: counts what it is told, and answers as `on_register` and the like say."""

    def __init__(self, name: str = "ns.comp.generate", instance: int = 0xAB12) -> None:
        self.name = name
        self.instance = instance
        self.serving: list[Work] = []
        self.served_with: dict[str, Any] = {}
        self.calls: list[str] = []
        self.advertised = False
        self.on_register: Callable[[Work], Any] = Work.resolve
        self.on_unregister: Callable[[Work], Any] = Work.resolve

    def serve_endpoint(self, handler: Any, **options: Any) -> asyncio.Future[Any]:
        self.calls.append("serve")
        self.served_with = {"handler": handler, **options}
        self.advertised = True
        work = Work()
        self.serving.append(work)
        return work.future

    def register_endpoint_instance(self) -> asyncio.Future[Any]:
        self.calls.append("register")
        return self._change(self.on_register, True)

    def unregister_endpoint_instance(self) -> asyncio.Future[Any]:
        self.calls.append("unregister")
        return self._change(self.on_unregister, False)

    def _change(self, act: Callable[[Work], Any], shown: bool) -> asyncio.Future[Any]:
        work = Work()

        def note(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is None:
                self.advertised = shown

        work.future.add_done_callback(note)
        act(work)
        return work.future

    def connection_id(self) -> int:
        return self.instance


class FakeDistributedRuntime:
    """The runtime: `shutdown` resolves every serve future, unless it `hangs`."""

    def __init__(self) -> None:
        self.endpoints: dict[str, FakeEndpoint] = {}
        self.shutdowns = 0
        self.hangs = False

    def endpoint(self, path: str) -> FakeEndpoint:
        if path.count(".") != 2:
            raise ValueError(f"Invalid endpoint: {path}")
        self.endpoints[path] = FakeEndpoint(path, 0xAB12 + len(self.endpoints))
        return self.endpoints[path]

    def shutdown(self) -> None:
        self.shutdowns += 1
        if not self.hangs:
            for endpoint in self.endpoints.values():
                for work in endpoint.serving:
                    work.resolve_from_thread()
