# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""compat.facade: what the runtime's two ways of calling have in common."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from compat.facade import Facade
from compat.loop import WorkerLoop, open_loop

ENDING_S = 0.05


class Migrated(Exception):
    """Stands for the installed Dynamo's ``EngineShutdown``."""


class Live:
    """An admitted request that takes a moment to end once it was abandoned."""

    def __init__(self, loop: WorkerLoop, outcome: Exception | None) -> None:
        self._loop = loop
        self._outcome = outcome
        self.ended: asyncio.Future[None] = loop.create_future()
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1
        if self.abandoned == 1:
            self._loop.call_later(ENDING_S, self.ended.set_result, None)

    def drop_outcome(self) -> None:
        self._outcome = None

    def take_outcome(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            raise outcome


class Senders:
    def open(self, sender: Any, backlog_frames: int) -> Any:
        return None


@pytest.mark.parametrize("arm", ["push", "pull"])
@pytest.mark.parametrize("outcome", [None, Migrated()], ids=["cancelled", "migrated"])
async def test_rule_131_a_cancelled_facade_ends_its_request_and_waits_for_it(
    arm: str, outcome: Exception | None, autojump_clock: MockClock
) -> None:
    """And the outcome of a worker shutdown has precedence (rule 60)."""
    async with open_loop() as loop:
        live = Live(loop, outcome)
        senders: Any = Senders()
        facade = Facade(lambda *_request: live, senders, backlog_frames=1)
        sender: Any = object() if arm == "push" else None
        stream = facade.generate({}, None, sender)
        task = asyncio.ensure_future(stream.__anext__(), loop=loop)
        await trio.sleep(1.0)
        began = trio.current_time()
        task.cancel()
        task.add_done_callback(lambda _task: took.append(trio.current_time() - began))
        took: list[float] = []
        await trio.sleep(1.0)
        assert live.abandoned >= 1
        assert took == [pytest.approx(ENDING_S)]
        if outcome is None:
            assert task.cancelled()
        else:
            assert isinstance(task.exception(), Migrated)
