# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A gateway's children as real processes that wait for their signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
import trio

from trio_worker import children as module
from trio_worker.children import Child, Children

STOP = {signal.SIGTERM, signal.SIGQUIT}

WAIT = "import signal, sys; wait = lambda *signals: signal.sigwait(signals); "
POLITE = WAIT + "sys.exit(wait(signal.SIGTERM, signal.SIGQUIT) == signal.SIGQUIT)"
SLOW = WAIT + "wait(signal.SIGTERM); wait(signal.SIGTERM)"
STUBBORN = WAIT + "wait(signal.SIGUSR2)"


@pytest.fixture(autouse=True)
def _blocked() -> Iterator[None]:
    """As in a worker: what comes before a child's first line is kept for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP, signal.SIGUSR2})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(children: Children, nursery: trio.Nursery, *scripts: str) -> list[Child]:
    started = [children.start([sys.executable, "-c", one], os.environ) for one in scripts]
    for child in started:
        nursery.start_soon(children.look_after, child)
    return started


def assert_reaped(*started: Child) -> None:
    for child in started:
        assert child.exited.is_set()
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


async def test_children_are_asked_and_leave() -> None:
    children = Children()
    async with trio.open_nursery() as nursery:
        started = start(children, nursery, POLITE, POLITE)
        # Not even started, for all we know.
        children.ask_to_stop()
        await children.wait_exited()
    assert children.pids == [child.pid for child in started]
    assert [child.status for child in started] == [0, 0]
    assert (children.failures, children.kill()) == (0, [])
    assert_reaped(*started)


async def test_children_are_told_that_the_engine_is_dead() -> None:
    children = Children()
    async with trio.open_nursery() as nursery:
        started = start(children, nursery, POLITE, POLITE)
        children.tell_engine_dead()
        await children.wait_exited()
    assert [child.status for child in started] == [1, 1]
    assert children.failures == 2


async def test_hurrying_is_a_second_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.HURRY_AFTER_S > module.SAME_REQUEST_SECONDS
    monkeypatch.setattr(module, "HURRY_AFTER_S", 0.3)
    children = Children()
    async with trio.open_nursery() as nursery:
        (child,) = start(children, nursery, SLOW)
        children.ask_to_stop()
        asked = trio.current_time()
        await children.hurry()
        assert trio.current_time() - asked >= 0.3
        # It may take both for one, if it was not up for the first.
        while not child.exited.is_set():
            children.ask_to_stop()
            await trio.sleep(0.01)
    assert child.status == 0


async def test_what_is_left_is_killed_and_reaped() -> None:
    children = Children()
    async with trio.open_nursery() as nursery:
        polite, stubborn = start(children, nursery, POLITE, STUBBORN)
        children.ask_to_stop()
        await polite.exited.wait()
        assert children.kill() == [stubborn.pid]
    assert (polite.status, stubborn.status) == (0, -signal.SIGKILL)
    assert_reaped(polite, stubborn)


async def test_a_child_does_not_outlive_its_task() -> None:
    children = Children()
    async with trio.open_nursery() as nursery:
        (child,) = start(children, nursery, STUBBORN)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert child.status == -signal.SIGKILL
    assert_reaped(child)
