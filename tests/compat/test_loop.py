# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The loop's queues: order, timers, batches, and what Trio's own tasks get in between."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType

import pytest
import trio
from trio.testing import MockClock

from compat.loop import BATCH_CALLBACKS, WorkerLoop, open_loop

from .loop_steps import counted_steps, no_time_bound  # noqa: F401  # a fixture


async def test_call_soon_keeps_the_order_across_batches() -> None:
    seen: list[int] = []
    count = BATCH_CALLBACKS * 3
    async with open_loop() as loop:
        for number in range(count):
            loop.call_soon(seen.append, number)
        await loop.synchronize()
    assert seen == list(range(count))


async def test_cancelled_callbacks_do_not_run() -> None:
    seen: list[str] = []
    async with open_loop() as loop:
        loop.call_soon(seen.append, "no").cancel()
        loop.call_later(0, seen.append, "no timer").cancel()
        loop.call_soon(seen.append, "yes")
        await loop.synchronize()
    assert seen == ["yes"]


async def test_a_frame_kept_from_a_callback_does_not_keep_the_callback() -> None:
    """Tasks keep errors, tracebacks keep frames, and from 3.12 on those lead to the loop's."""

    class Argument:
        pass

    frames: list[FrameType] = []

    def callback(argument: Argument) -> None:
        frames.append(sys._getframe(1))  # this one's own keeps the argument

    async with open_loop() as loop:
        argument = Argument()
        alive = weakref.ref(argument)
        loop.call_soon(callback, argument)
        del argument
        await loop.synchronize()
        assert frames
        assert alive() is None


async def test_loop_runs_from_the_first_line_of_the_body() -> None:
    async with open_loop() as loop:
        assert loop.is_running()
        assert asyncio.get_running_loop() is loop
    assert not loop.is_running()
    assert loop.is_closed()


async def test_timers_run_in_order_of_time_then_of_call(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    async with open_loop() as loop:
        start = loop.time()
        loop.call_at(start + 2, seen.append, "two")
        loop.call_later(1, seen.append, "one, first")
        loop.call_later(1, seen.append, "one, second")
        loop.call_at(start - 1, seen.append, "past")
        await trio.sleep(1.5)
        assert seen == ["past", "one, first", "one, second"]
        await trio.sleep(1)
        assert seen[3:] == ["two"]
        assert loop.time() == start + 2.5


async def test_an_earlier_timer_replaces_the_alarm_of_a_sleeping_loop(
    autojump_clock: MockClock,
) -> None:
    ran: dict[str, float] = {}

    def note(name: str) -> None:
        ran[name] = trio.current_time() - start

    async with open_loop() as loop:
        start = trio.current_time()
        loop.call_later(100, note, "late")
        await trio.sleep(1)
        loop.call_later(1, note, "early")
        await trio.testing.wait_all_tasks_blocked()
        # Set by the poller's batch, while the runner sleeps on.
        loop.call_soon_threadsafe(loop.call_later, 0.5, note, "earliest")
        await trio.sleep(200)
    assert list(ran.items()) == [("earliest", 1.5), ("early", 2.0), ("late", 100.0)]


async def test_cancelled_timers_do_not_pile_up(autojump_clock: MockClock) -> None:
    seen: list[int] = []
    async with open_loop() as loop:
        for number in range(1000):
            handle = loop.call_later(3600 + number, seen.append, number)
            if number != 7:
                handle.cancel()
        assert len(loop._timers) < 250
        await trio.sleep(5000)
        assert seen == [7]
        assert loop._timers == []
        assert loop._timers_cancelled == 0


async def test_asyncio_timeouts_follow_trios_clock(autojump_clock: MockClock) -> None:
    async def impatient() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 1.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.sleep(60)
        return loop.time() - start

    async with open_loop() as loop:
        assert await loop.run_aio_coroutine(impatient()) == pytest.approx(4.0)


async def test_debug_mode_checks_callbacks() -> None:
    async def not_a_callback() -> None: ...

    async with open_loop() as loop:
        loop.set_debug(True)
        with pytest.raises(TypeError, match="coroutines cannot be used"):
            loop.call_soon(not_a_callback)
        loop.set_debug(False)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(0, print)


def soon(loop: WorkerLoop, callback: Callable[[], None]) -> None:
    loop.call_soon(callback)


def later(loop: WorkerLoop, callback: Callable[[], None]) -> None:
    loop.call_later(0, callback)


def threadsafe(loop: WorkerLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)


storms = pytest.mark.parametrize("rearm", [soon, later, threadsafe])


class Storm:
    """A callback that queues itself again each time it runs."""

    def __init__(self, loop: WorkerLoop, rearm: Callable[[WorkerLoop, Callable[[], None]], None]):
        self.loop = loop
        self.rearm = rearm
        self.runs = 0
        self.on = True
        rearm(loop, self)

    def __call__(self) -> None:
        self.runs += 1
        if self.on:
            self.rearm(self.loop, self)


@storms
async def test_a_storm_leaves_trio_one_checkpoint_a_batch(
    rearm: Callable[[WorkerLoop, Callable[[], None]], None],
) -> None:
    async with open_loop() as loop:
        storm = Storm(loop, rearm)
        await trio.lowlevel.checkpoint()
        with counted_steps(loop) as steps:
            gaps = []
            for _ in range(200):
                before = storm.runs
                await trio.lowlevel.checkpoint()
                gaps.append(storm.runs - before)
        storm.on = False
    assert sum(gaps) > 0
    # Trio may order two tasks differently in two rounds: at most two batches in a gap.
    assert max(gaps) <= 2 * BATCH_CALLBACKS
    # Each drain is followed by its checkpoint, and nothing else is done with it.
    assert abs(steps.runner - steps.drains) <= 1
    assert steps.runner <= 201


async def test_a_timer_that_is_due_before_the_runner_sleeps_costs_a_checkpoint_too() -> None:
    async with open_loop() as loop:
        # A clock on which each look takes a second: not due yet when the batch ends, due when the
        # runner looks again.
        clock = itertools.count(loop.time() + 1)
        loop._now = lambda: float(next(clock))
        storm = Storm(loop, lambda loop, callback: loop.call_later(1.5, callback))
        await trio.lowlevel.checkpoint()
        with counted_steps(loop) as steps:
            for _ in range(100):
                await trio.lowlevel.checkpoint()
        storm.on = False
    assert storm.runs >= 50
    assert abs(steps.runner - steps.drains) <= 1


@storms
async def test_a_storm_delays_trio_by_less_than_10_ms(
    rearm: Callable[[WorkerLoop, Callable[[], None]], None],
) -> None:
    lags = []
    async with open_loop() as loop:
        storm = Storm(loop, rearm)
        for _ in range(100):
            # The thread's own time: the bound is the loop's, not a busy machine's scheduler's.
            start = time.thread_time()
            await trio.lowlevel.checkpoint()
            lags.append(time.thread_time() - start)
        storm.on = False
    assert storm.runs >= 20
    # All but a few, which a full garbage collection of the whole test session may hit.
    assert statistics.quantiles(lags, n=20)[-1] < 0.010


async def test_slow_callbacks_end_the_batch_early() -> None:
    ran: list[int] = []

    def slow(number: int) -> None:
        ran.append(number)
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass

    async with open_loop() as loop:
        for number in range(BATCH_CALLBACKS):
            loop.call_soon(slow, number)
        with counted_steps(loop) as steps:
            await loop.synchronize()
        # The clock is looked at after one and after three callbacks of 0.5 ms.
        assert steps.drains >= BATCH_CALLBACKS // 4
    assert ran == list(range(BATCH_CALLBACKS))


async def test_a_storm_keeps_neither_descriptors_nor_threads_waiting() -> None:
    waits = []
    before = sys.getswitchinterval()
    async with open_loop() as loop:
        storm = Storm(loop, soon)
        for _ in range(20):
            began = storm.runs
            done = trio.Event()
            await trio.to_thread.run_sync(loop.call_soon_threadsafe, done.set)
            await done.wait()
            waits.append(storm.runs - began)
        assert storm.runs > 20
        storm.on = False
    # With CPython's own switch interval it is a million callbacks: the thread waits for seconds.
    assert statistics.median(waits) < 100_000
    assert sys.getswitchinterval() == before


async def test_a_call_between_the_last_look_and_sleep_is_not_lost() -> None:
    """What another thread appends just before `_idle` is set, it does not announce."""
    seen: list[int] = []
    appended: list[int] = []

    async with open_loop() as loop:
        now, next_due = loop._now, loop._next_due

        def append() -> None:
            if len(appended) < 20:
                appended.append(len(appended))
                loop.call_soon_threadsafe(seen.append, appended[-1])

        def racing_now() -> float:
            append()
            return now()

        def racing_next_due() -> float:
            append()
            return next_due()

        # The runner looks at the clock, the poller at the timers, right before.
        for name, race, wake in (
            ("_now", racing_now, loop.call_soon),
            ("_next_due", racing_next_due, loop.call_soon_threadsafe),
        ):
            appended.clear()
            seen.clear()
            setattr(loop, name, race)
            for _ in range(20):
                wake(int)
                await trio.testing.wait_all_tasks_blocked()
                assert seen == appended
            assert len(appended) == 20
            loop._now, loop._next_due = now, next_due


async def test_an_idle_loop_costs_nothing(autojump_clock: MockClock) -> None:
    async with open_loop() as loop:
        loop.call_later(10_000, print)
        await trio.sleep(1)
        with counted_steps(loop) as steps:
            await trio.sleep(1000)
        assert steps.total == 0


@pytest.mark.usefixtures("no_time_bound")
async def test_one_wake_up_for_many_callbacks() -> None:
    seen: list[int] = []
    async with open_loop() as loop:
        await trio.testing.wait_all_tasks_blocked()
        with counted_steps(loop) as steps:
            for number in range(BATCH_CALLBACKS // 2):
                loop.call_soon(seen.append, number)
            await loop.synchronize()
        assert len(seen) == BATCH_CALLBACKS // 2
        assert steps.drains == 1


async def test_trio_functions_start_in_their_turn() -> None:
    order: list[str] = []

    async def function(name: str) -> None:
        order.append(name)
        await trio.lowlevel.checkpoint()

    async with open_loop() as loop:
        loop.call_soon(order.append, "before")
        first = loop.trio_as_future(function, "first")
        loop.call_soon(order.append, "between")
        second = loop.trio_as_future(function, "second")
        loop.call_soon(order.append, "after")
        await loop.run_aio_future(first)
        await loop.run_aio_future(second)
    assert order == ["before", "first", "between", "second", "after"]


async def test_stop_runs_what_was_queued_and_nothing_more() -> None:
    seen: list[str] = []
    async with open_loop() as loop:
        loop.call_soon(seen.append, "before")
        stopped = loop.stop()
        loop.call_soon(seen.append, "after")
        await stopped.wait()
        await loop.wait_stopped()
        assert not loop.is_running()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["before"]
        assert loop.stop().is_set()
    # Closing runs it again, as asyncio.run does.
    assert seen == ["before", "after"]


async def test_a_stopped_loop_still_closes_its_tasks() -> None:
    ended: list[str] = []

    async def task() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("task")

    async with open_loop() as loop:
        loop.create_task(task())
        await loop.synchronize()
        await loop.stop().wait()
    assert ended == ["task"]


@pytest.mark.parametrize("still_queued", [False, True])
async def test_stop_can_not_hang_the_close(still_queued: bool) -> None:
    ended: list[str] = []

    async def task() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
            ended.append("task")

    with trio.fail_after(5):
        async with open_loop() as loop:
            loop.create_task(task())
            await loop.synchronize()
            if still_queued:
                stopped = loop.stop()
    assert ended == ["task"]
    if still_queued:
        assert stopped.is_set()
