# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.requests.live: who is refused, and what a refusal leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
from dynamo.llm.exceptions import EngineShutdown

from compat.egress import PullEgress
from compat.feeders import Feeders
from compat.loop import WorkerLoop, open_loop
from tests.fakes.context import FakeContext
from tests.fakes.journal import Journal
from trio_worker.requests.abort import Aborts
from trio_worker.requests.live import LiveRequests


def live_requests(loop: WorkerLoop, serving: trio.Nursery, aborting: trio.Nursery) -> LiveRequests:
    manager = SimpleNamespace(rid_to_state={})
    return LiveRequests(
        loop=loop,
        serving=serving,
        feeders=Feeders(loop),
        aborts=Aborts(manager, aborting, order_is_proven=True),
        tokenizer_manager=manager,
    )


def migrate(live: LiveRequests, _serving: trio.Nursery) -> None:
    live.migrate_all()


def cancel(_live: LiveRequests, serving: trio.Nursery) -> None:
    serving.cancel_scope.cancel()


@pytest.mark.parametrize("closed", [False, True], ids=["nursery open", "nursery closed"])
@pytest.mark.parametrize("refuse", [migrate, cancel])
async def test_rules_111_124_a_late_request_is_told_to_go_elsewhere(
    refuse: Callable[[LiveRequests, trio.Nursery], None],
    closed: bool,
    autojump_clock: MockClock,
) -> None:
    async def plan() -> Any:
        raise AssertionError("planned in spite of the refusal")

    async with open_loop() as loop:
        async with trio.open_nursery() as aborting, trio.open_nursery() as serving:
            live = live_requests(loop, serving, aborting)
            refuse(live, serving)
            if not closed:
                await refused(loop, live, plan)
        if closed:
            await refused(loop, live, plan)


async def refused(loop: WorkerLoop, live: LiveRequests, plan: Any) -> None:
    journal = Journal()
    journal.open()

    async def admit() -> None:
        with pytest.raises(EngineShutdown):
            live.admit(FakeContext(journal), PullEgress(), plan)

    with trio.CancelScope(shield=True):
        task = loop.create_task(admit())
        await trio.sleep(0.1)
        assert task.done()
        task.result()
    assert (live.count, live.refused, live.feeders.started) == (0, 1, 0)
