# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""An asyncio loop in a thread of its own, for coroutines that would block ours.

Not ours to change, they encode videos between two awaits. Here that keeps only their likes
waiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class SideLoop:
    """Lives until `close`; at the end of the process nobody waits for what it still does."""

    def __init__(self, name: str, threads: int) -> None:
        """`threads`: for its coroutines' ``asyncio.to_thread``."""
        self._loop = asyncio.SelectorEventLoop()
        self._loop.set_default_executor(ThreadPoolExecutor(threads, f"{name}-work"))
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Per thread, with trio-asyncio; without one, new loops here would be its own.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """asyncio. The result or error of the coroutine that `make` returns, run over there.

        Cancelled, it is cancelled there too, and left at once.
        """
        # In an empty context: nothing of ours is known over there.
        there = contextvars.Context().run(asyncio.run_coroutine_threadsafe, make(), self._loop)
        return await asyncio.wrap_future(there)

    def close(self) -> None:
        """Trio. No further step is taken; a step under way is not waited for. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
