# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Control calls run to their end, whoever leaves; blocking ones in a thread that nobody polls."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
import trio
import trio.testing
import trio_asyncio

from compat.control_calls import ControlCalls, EngineCloses, run_in_thread
from compat.feeders import Feeders
from compat.loop import open_loop


async def test_results_and_errors_come_bare() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        raise OSError(5, "input/output")

    async with open_loop() as loop:
        calls = ControlCalls(Feeders(loop))
        run = trio_asyncio.aio_as_trio(calls.run)
        assert await run(answer) == 42
        with pytest.raises(OSError, match="input/output"):
            await run(fail)
        assert loop.unhandled_errors == 0


async def test_a_call_goes_on_when_its_caller_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ended = trio.Event()

    async def work() -> None:
        await asyncio.sleep(5)
        ended.set()
        raise ValueError("nobody hears it")

    async with open_loop() as loop:
        calls = ControlCalls(Feeders(loop))
        with trio.move_on_after(1) as patience:
            await trio_asyncio.aio_as_trio(calls.run)(work)
        assert patience.cancelled_caught
        assert not ended.is_set()
        await trio.sleep(4.5)
        assert ended.is_set()
        # Nor does the loop, in a line about exceptions that were never retrieved.
        assert loop.unhandled_errors == 0


async def test_closing_ends_a_call_and_its_caller_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop() as loop, trio.open_nursery() as nursery:
        calls = ControlCalls(Feeders(loop))

        async def ask() -> None:
            with pytest.raises(EngineCloses):
                await trio_asyncio.aio_as_trio(calls.run)(lambda: asyncio.sleep(1000))

        nursery.start_soon(ask)
        await trio.sleep(1)
        await calls.close(1.0)


async def test_closing_does_not_wait_for_a_call_that_resists(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def resist() -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    async with open_loop() as loop, trio.open_nursery() as nursery:
        calls = ControlCalls(Feeders(loop))

        async def ask() -> None:
            await trio_asyncio.aio_as_trio(calls.run)(resist)

        nursery.start_soon(ask)
        await trio.sleep(1)
        began = trio.current_time()
        await calls.close(1.0)
        assert trio.current_time() - began <= 1.0
        nursery.cancel_scope.cancel()
    assert "1 control calls left behind" in caplog.text


async def test_a_blocking_call_has_a_thread_of_its_own() -> None:
    def work(left: int, *, right: int) -> tuple[int, str]:
        return left + right, threading.current_thread().name

    async with open_loop():
        result = await trio_asyncio.aio_as_trio(run_in_thread)(work, 1, right=2)
    assert result == (3, "control-call")


async def test_errors_of_a_blocking_call() -> None:
    def fail() -> None:
        raise KeyError("x")

    def leave() -> None:
        raise SystemExit(3)

    async with open_loop():
        run = trio_asyncio.aio_as_trio(run_in_thread)
        with pytest.raises(KeyError):
            await run(fail)
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)") as told:
            await run(leave)
        assert isinstance(told.value.__cause__, SystemExit)


async def test_nobody_polls_a_blocking_call() -> None:
    """The loop has nothing to do while the thread works."""
    release = threading.Event()
    iterations = 0

    async with open_loop() as loop:
        scheduled = loop.call_at

        def counting(*args: object, **kwargs: object) -> object:
            nonlocal iterations
            iterations += 1
            return scheduled(*args, **kwargs)

        loop.call_at = counting
        task = loop.create_task(run_in_thread(release.wait))
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked(0.005)
        assert not task.done()
        assert iterations == 0
        release.set()
        assert await trio_asyncio.run_aio_future(task)


async def test_a_cancellation_waits_for_the_thread() -> None:
    """What the caller holds locked stays locked while the thread works (C45, C46)."""
    release = threading.Event()
    async with open_loop() as loop:
        lock = asyncio.Lock()

        async def locked() -> None:
            async with lock:
                await run_in_thread(release.wait)

        task = loop.create_task(locked())
        await trio.testing.wait_all_tasks_blocked(0.01)
        for _ in range(2):
            task.cancel()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert lock.locked()
        release.set()
        done = trio.Event()
        task.add_done_callback(lambda _task: done.set())
        await done.wait()
        assert task.cancelled()
        assert not lock.locked()


async def test_a_thread_may_outlive_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        release.wait()
        threading.Timer(0.01, ended.set).start()

    async with open_loop(close_timeout=0.1) as loop:
        task = loop.create_task(run_in_thread(work))
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert not task.done()
    release.set()
    await trio.to_thread.run_sync(ended.wait)
    assert "left behind" in caplog.text
