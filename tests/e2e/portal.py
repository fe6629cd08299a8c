# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A Trio run in a thread of its own that keeps something alive for longer than one test.

pytest-trio gives each test a run of its own, so that nothing asynchronous outlives a test. A worker
takes forty seconds to start: it is shared, and lives here.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")


class Portal(Generic[T]):
    """Holds what `opens` opens until `close`. Made and closed outside of Trio."""

    def __init__(self, opens: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._opens = opens
        self._token: trio.lowlevel.TrioToken | None = None
        self._held: T | None = None
        self._error: BaseException | None = None
        self._opened = threading.Event()
        self._leave: trio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="portal", daemon=True)
        self._thread.start()

    def wait_open(self) -> T:
        """Neither flavour; blocks. What was opened; raises what opening raised."""
        self._opened.wait()
        if self._error is not None:
            raise self._error
        assert self._held is not None
        return self._held

    def call(self, function: Callable[..., Awaitable[R]], *args: object) -> R:
        """Neither flavour; blocks while `function`, Trio, runs in the portal's thread."""
        self.wait_open()
        return trio.from_thread.run(function, *args, trio_token=self._token)

    async def ask(self, function: Callable[..., Awaitable[R]], *args: object) -> R:
        """Trio. `call` for a test, which has a run of its own and goes on meanwhile."""
        return await trio.to_thread.run_sync(self.call, function, *args)

    def close(self) -> None:
        """Neither flavour; blocks until all is closed. Raises what closing raised."""
        if self._token is not None and self._leave is not None:
            self._token.run_sync_soon(self._leave.set)
        self._thread.join()
        if self._error is not None and self._held is not None:
            raise self._error

    def _run(self) -> None:
        try:
            trio.run(self._hold)
        except BaseException as error:
            self._error = error
        finally:
            self._opened.set()

    async def _hold(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._leave = trio.Event()
        async with self._opens() as self._held:
            self._opened.set()
            await self._leave.wait()
