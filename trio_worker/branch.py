# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A nursery that can be ended without cancelling the block that opened it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

logger = logging.getLogger(__name__)


class Branch:
    """One branch of the worker's tree. Its children never raise into it: a failure is reported.

    A raising child would cancel its siblings, and the whole tree with them, before the shutdown
    plan has seen to anybody.
    """

    def __init__(self, name: str, on_error: Callable[[str, BaseException], None]) -> None:
        self.name = name
        self.nursery: trio.Nursery
        self._on_error = on_error
        self._ended = trio.Event()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with trio.open_nursery() as self.nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._ended.set()

    def start_service(self, service: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Trio or asyncio. Run `service(*args)` until it returns or the branch is closed."""
        self.nursery.start_soon(self._guard, service, *args)

    async def _guard(self, service: Callable[..., Awaitable[Any]], *args: Any) -> None:
        try:
            await service(*args)
        except Exception as error:
            logger.exception("%s: %r failed", self.name, service)
            self._on_error(self.name, error)

    async def close(self) -> None:
        """Trio. Cancel what runs here and wait until it has ended. Idempotent."""
        self.nursery.cancel_scope.cancel()
        await self._ended.wait()


@asynccontextmanager
async def open_branch(
    name: str, on_error: Callable[[str, BaseException], None]
) -> AsyncIterator[Branch]:
    """Trio. A branch for the length of the block; leaving cancels and joins it."""
    branch = Branch(name, on_error)
    async with trio.open_nursery() as holder:
        await holder.start(branch._run, name=name)
        try:
            yield branch
        finally:
            branch.nursery.cancel_scope.cancel()
