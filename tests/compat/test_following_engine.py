# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A node that does not lead: whose end is a goodbye, and whose is a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from compat import engine as module
from compat.engine import SCHEDULER_EXIT_S, FollowingEngine
from compat.permanent_thread import PermanentThread

FOREVER = float("inf")


def following(
    exits: dict[int, tuple[float, int | None]], monkeypatch: pytest.MonkeyPatch
) -> FollowingEngine:
    """An engine whose children exit after some seconds, each with its status."""

    async def wait_process_exit(pid: int) -> int | None:
        seconds, status = exits[pid]
        await trio.sleep(seconds)
        return status

    monkeypatch.setattr(module, "wait_process_exit", wait_process_exit)
    scheduler: Any = SimpleNamespace(
        tokenizer_manager=None, get_all_child_pids=lambda: list(exits), server_args=None
    )
    loop: Any = None
    return FollowingEngine(scheduler, loop, PermanentThread("test"))


@pytest.mark.parametrize("status", [0, None])
async def test_the_end_of_all_is_a_goodbye(
    status: int | None, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    # A grandchild's status can't be known; SGLang's controller, their parent, has one.
    engine = following({1: (5.0, 0), 2: (5.0 + SCHEDULER_EXIT_S - 1, status)}, monkeypatch)
    await engine.watch_children()
    assert engine.group_ended.is_set()
    assert not engine.died.is_set()


async def test_a_failure_is_one_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    engine = following({1: (FOREVER, 0), 2: (5.0, -9)}, monkeypatch)
    began = trio.current_time()
    await engine.watch_children()
    assert trio.current_time() - began == pytest.approx(5.0)
    assert not engine.group_ended.is_set()
    assert engine.death == "child process 2 exited with status -9"


async def test_who_goes_alone_was_not_told(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    engine = following({1: (FOREVER, 0), 2: (5.0, 0)}, monkeypatch)
    began = trio.current_time()
    await engine.watch_children()
    assert trio.current_time() - began == pytest.approx(5.0 + SCHEDULER_EXIT_S)
    assert not engine.group_ended.is_set()
    assert engine.death == "child process 2 exited with status 0"
