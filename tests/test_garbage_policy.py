# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.garbage: no full collection while streams are live, everything restored after."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_worker import garbage
from trio_worker.garbage import Garbage


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def run_for(policy: Garbage, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await policy.keep()


async def test_freeze_runs_no_full_collection_while_streams_are_live(
    autojump_clock: object,
) -> None:
    policy = Garbage("freeze", live=lambda: 3)
    await run_for(policy, 600)
    # The one before freezing is start-up's.
    assert policy.stats.full == 1


async def test_freeze_collects_once_a_minute_when_idle(autojump_clock: object) -> None:
    policy = Garbage("freeze", live=lambda: 0)
    await run_for(policy, 305)
    assert policy.stats.full == 1 + 5
    assert policy.stats.full_while_live == 0


async def test_memory_that_grows_demands_a_collection_under_load(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = [0]
    monkeypatch.setattr(garbage, "resident_bytes", lambda: resident[0])
    policy = Garbage("freeze", live=lambda: 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(policy.keep)
        await trio.sleep(11)
        assert policy.stats.full == 1
        resident[0] = garbage.GROWTH_BYTES + 1
        await trio.sleep(20)
        assert policy.stats.full == 2
        assert policy.stats.full_while_live >= 1
        nursery.cancel_scope.cancel()


async def test_thresholds_and_heap_are_restored() -> None:
    before = gc.get_threshold()
    policy = Garbage("freeze", live=lambda: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(policy.keep)
        await wait_all_tasks_blocked()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[2] == garbage.NEVER
        nursery.cancel_scope.cancel()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_off_changes_nothing() -> None:
    before = gc.get_threshold()
    policy = Garbage("off", live=lambda: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(policy.keep)
        await wait_all_tasks_blocked()
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0
        gc.collect()
        nursery.cancel_scope.cancel()
    assert policy.stats.full == 1
