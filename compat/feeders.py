# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The one place where we own asyncio tasks: feeders, which run SGLang's generators.

A stream that ignores cancellation must not hold its request, and a Trio task that ran it through
the bridge could not be left. So a feeder is an asyncio task that belongs to the engine; its
request waits for it in a way that can be given up, and detaches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import trio

from compat.loop import WorkerLoop, abandon


class Feeder:
    """One asyncio task that feeds one request."""

    __slots__ = ("_asked", "_ended", "task")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task: asyncio.Task[None] | None = task
        self._ended: trio.Event | None = None
        self._asked = False

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        return self.task is None or self.task.done()

    def cancel(self) -> None:
        """Trio or asyncio. Ask the task to end; SGLang's generator then aborts or drops its rid.

        Once: a task that has begun to end is left to it.
        """
        if self.task is not None and not self._asked:
            self._asked = True
            self.task.cancel()

    def forget(self) -> None:
        """Trio. Let go of the task, which keeps its error, whose frames know the request."""
        self.task = None

    async def wait_ended(self) -> None:
        """Trio. Wait until the task has ended; giving up leaves it running."""
        if self.task is None or self.task.done():
            return
        if self._ended is None:
            self._ended = trio.Event()
            self.task.add_done_callback(self._set_ended)
        await self._ended.wait()

    def _set_ended(self, _task: asyncio.Task[None]) -> None:
        assert self._ended is not None
        self._ended.set()


@dataclass(frozen=True, slots=True)
class Adrift:
    """A feeder that resists: its request has gone on without it."""

    context_id: str
    since: float
    """Trio's clock, seconds."""


class Feeders:
    """Owner of every feeder: counts them, ends them within a bound, hides what resists."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.started = 0
        self.detached = 0
        """So far; `adrift` are those that still run."""
        self.adrift: dict[asyncio.Task[None], Adrift] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, feed: Coroutine[Any, Any, None]) -> Feeder:
        """Trio or asyncio. Run `feed`, which must not raise, on the bridge's loop."""
        task = self._loop.create_task(feed, context=self._loop.base_context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.started += 1
        return Feeder(task)

    def detach(self, feeder: Feeder, context_id: str) -> None:
        """Trio. A request leaves while `feeder` resists; it stays ours and counted."""
        task = feeder.task
        if task is not None and not task.done():
            self.detached += 1
            self.adrift[task] = Adrift(context_id, trio.current_time())
            task.add_done_callback(self._moored)

    def _moored(self, task: asyncio.Task[None]) -> None:
        del self.adrift[task]

    async def close(self, seconds: float) -> int:
        """Trio. Cancel all, wait at most `seconds`; what is left no longer holds the loop.

        Returns the number of feeders left behind.
        """
        for task in tuple(self._tasks):
            task.cancel()
        with trio.move_on_after(seconds) as patience:
            patience.shield = True
            # Not "while self._tasks": a task that has just ended stays there until its callback
            # has run, which a loop that never waits would keep from happening.
            while running := self._running():
                await Feeder(running[0]).wait_ended()
        left = self._running()
        for task in left:
            abandon(task)
        return len(left)

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if not task.done()]
