# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Waits for asyncio futures that can always be left."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest
import trio
import trio.testing

from compat.futures import settle, until_done, within
from compat.loop import abandon, open_loop
from compat.runtime_errors import RuntimeTooSlow, RuntimeTrouble
from tests.compat.rust import Work


async def test_results_come_from_other_threads() -> None:
    async with open_loop():
        for number in range(50):
            assert await within(5, lambda n=number: Work().resolve_from_thread(n).future, "") == (
                number
            )


async def test_errors_come_bare() -> None:
    async with open_loop():
        error = OSError(5, "input/output")
        with pytest.raises(OSError, match="input/output") as caught:
            await within(5, lambda: Work().resolve_from_thread(error).future, "")
        assert caught.value is error


async def test_an_error_of_the_call_itself_comes_bare() -> None:
    def fail() -> asyncio.Future[None]:
        raise ValueError("sync")

    async with open_loop():
        with pytest.raises(ValueError, match="sync"):
            await within(5, fail, "")


async def test_a_coroutine_will_do() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async with open_loop():
        assert await within(5, answer, "") == 42


async def test_a_future_that_is_done_already_will_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop() as loop:
        future = loop.create_future()
        future.set_result(1)
        with trio.testing.assert_checkpoints():
            assert await settle(future) == 1


async def test_no_answer_is_left_at_the_bound_and_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop():
        work = Work()
        began = trio.current_time()
        with pytest.raises(RuntimeTooSlow, match=r"^etcd: no answer for 2\.5 s$"):
            await within(2.5, lambda: work.future, "etcd")
        assert trio.current_time() - began == pytest.approx(2.5)
        await trio.testing.wait_all_tasks_blocked()
        assert work.cancelled


async def test_what_ignores_its_cancellation_is_left_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with open_loop() as loop:
        task = loop.create_task(stubborn())
        began = trio.current_time()
        with pytest.raises(RuntimeTooSlow):
            await within(1.0, lambda: task, "stubborn")
        assert trio.current_time() - began == pytest.approx(1.0)
        assert not task.done()
        release.set()
        await until_done(task)


async def test_cancelling_the_caller_leaves_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop():
        work = Work()
        with trio.move_on_after(0.5) as scope:
            await within(100, lambda: work.future, "")
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert work.cancelled


async def test_a_result_that_meets_the_bound_does_no_harm(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop() as loop:
        for _ in range(20):
            work = Work().resolve_after(1.0, "in time")
            try:
                assert await within(1.0, lambda future=work.future: future, "") == "in time"
            except RuntimeTooSlow:
                assert work.future.done()
        await loop.synchronize()
        assert loop.unhandled_errors == 0


async def test_done_and_cancelled_in_one_tick_wakes_the_task_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop() as loop:
        future = loop.create_future()
        with trio.CancelScope() as scope:

            async def both() -> None:
                future.set_result(1)
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(settle, future)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(both)
        await loop.synchronize()
        # A second reschedule would have ended the run with an internal error.
        await trio.sleep(1)
        assert loop.unhandled_errors == 0


async def test_a_late_error_is_retrieved(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def late() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise OSError("late") from None

    caplog.set_level(logging.DEBUG, "compat.futures")
    async with open_loop() as loop:
        with pytest.raises(RuntimeTooSlow):
            await within(1.0, late, "late")
        await loop.synchronize()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert loop.unhandled_errors == 0
    assert "Late error" in caplog.text


async def test_cancellation_by_somebody_else_is_an_error_of_ours(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_loop():
        work = Work()
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await trio.sleep(1)
                work.future.cancel()

            nursery.start_soon(cancel)
            with pytest.raises(RuntimeTrouble, match="somebody else"):
                await within(5, lambda: work.future, "")


async def test_until_done_never_cancels(autojump_clock: trio.testing.MockClock) -> None:
    async with open_loop():
        work = Work()
        with trio.move_on_after(1):
            await until_done(work.future)
        assert not work.future.done()
        work.resolve(OSError("whatever"))
        await until_done(work.future)
        assert isinstance(work.future.exception(), OSError)


async def test_abandoned_tasks_do_not_keep_the_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue

    async with open_loop() as loop:
        task = loop.create_task(stubborn())
        with pytest.raises(RuntimeTooSlow):
            await within(1.0, lambda: task, "stubborn")
        abandon(task)
