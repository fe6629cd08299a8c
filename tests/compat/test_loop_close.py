# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Errors, exits, and every way out of `open_loop`."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock
from trio_asyncio import aio_as_trio, current_loop, trio_as_aio

from compat.loop import BATCH_CALLBACKS, WorkerLoop, abandon, open_loop


class OriginalError(Exception):
    pass


def fail() -> NoReturn:
    raise OriginalError


async def fail_as_task() -> NoReturn:
    await asyncio.sleep(0)
    raise OriginalError


async def body_with(prepare: Callable[[WorkerLoop], object]) -> None:
    """A body that waits for its end after `prepare`."""
    async with open_loop() as loop:
        prepare(loop)
        await trio.sleep_forever()


# ---- errors that nobody waits for ----


async def test_failing_callbacks_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with open_loop() as loop:
        loop.call_soon(fail)
        loop.call_later(0, fail)
        loop.call_soon_threadsafe(fail)
        for _ in range(3):
            await loop.synchronize()
        assert loop.unhandled_errors == 3
    assert [record.name for record in caplog.records] == ["asyncio"] * 3
    assert all("Exception in callback fail" in record.message for record in caplog.records)


async def test_a_failed_task_that_nobody_awaits_is_logged_not_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_loop() as loop:
        task = loop.create_task(fail_as_task())
        while not task.done():
            await loop.synchronize()
        assert loop.unhandled_errors == 0
        del task
        gc.collect()
        assert loop.unhandled_errors == 1
    assert "Task exception was never retrieved" in caplog.text


async def test_failing_trio_functions_and_readers_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def trio_function() -> NoReturn:
        await trio.lowlevel.checkpoint()
        raise OriginalError

    async with open_loop() as loop:
        loop.run_trio_task(trio_function)
        await trio.testing.wait_all_tasks_blocked()
        assert loop.unhandled_errors == 1
        assert loop.is_running()
    assert "OriginalError" in caplog.text


async def test_an_exception_handler_that_was_set_is_used_and_counted() -> None:
    seen: list[dict[str, Any]] = []
    async with open_loop() as loop:
        loop.set_exception_handler(lambda _loop, context: seen.append(context))
        loop.call_soon(fail)
        await loop.synchronize()
        assert loop.unhandled_errors == 1
    assert isinstance(seen[0]["exception"], OriginalError)


# ---- exit requests ----


def leave() -> NoReturn:
    sys.exit(3)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


async def leave_as_task() -> NoReturn:
    await asyncio.sleep(0)
    sys.exit(3)


async def leave_in_trio() -> NoReturn:
    await trio.lowlevel.checkpoint()
    sys.exit(3)


def from_callback(loop: WorkerLoop) -> None:
    loop.call_soon(leave)


def from_timer(loop: WorkerLoop) -> None:
    loop.call_later(0, leave)


def from_thread(loop: WorkerLoop) -> None:
    loop.call_soon_threadsafe(leave)


def from_task(loop: WorkerLoop) -> None:
    keep.append(loop.create_task(leave_as_task()))


def from_trio_task(loop: WorkerLoop) -> None:
    loop.run_trio_task(leave_in_trio)


keep: list[object] = []
exits = pytest.mark.parametrize(
    "cause", [from_callback, from_timer, from_thread, from_task, from_trio_task]
)


@exits
async def test_an_exit_request_goes_to_the_hook_and_the_loop_lives_on(
    cause: Callable[[WorkerLoop], None],
) -> None:
    requests: list[BaseException] = []
    seen: list[str] = []
    async with open_loop() as loop:
        loop.on_exit_request = requests.append
        cause(loop)
        await trio.testing.wait_all_tasks_blocked()
        loop.call_soon(seen.append, "alive")
        await loop.synchronize()
        for kept in keep:
            assert isinstance(kept, asyncio.Task)
            assert isinstance(kept.exception(), SystemExit)
        keep.clear()
    assert [type(exc) for exc in requests] == [SystemExit]
    assert isinstance(requests[0], SystemExit)
    assert requests[0].code == 3
    assert seen == ["alive"]


@exits
async def test_an_exit_request_without_a_hook_leaves_the_body_bare(
    cause: Callable[[WorkerLoop], None],
) -> None:
    with pytest.raises(SystemExit) as raised:
        await body_with(cause)
    assert raised.value.code == 3
    for kept in keep:
        assert isinstance(kept, asyncio.Task)
        assert isinstance(kept.exception(), SystemExit)
    keep.clear()


async def test_keyboard_interrupt_of_a_callback_is_an_exit_request() -> None:
    with pytest.raises(KeyboardInterrupt):
        await body_with(lambda loop: loop.call_soon(interrupt))


async def test_an_exit_request_during_the_close_is_raised_after_it() -> None:
    async def leaves_when_cancelled() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            sys.exit(4)

    async def other() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append("other")

    async def body() -> None:
        async with open_loop() as loop:
            tasks.append(loop.create_task(leaves_when_cancelled()))
            tasks.append(loop.create_task(other()))
            await loop.synchronize()

    ended: list[str] = []
    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(SystemExit) as raised:
        await body()
    assert raised.value.code == 4
    assert isinstance(tasks[0].exception(), SystemExit)
    assert tasks[1].cancelled()
    assert ended == ["other"]


async def test_the_bodys_error_wins_over_an_exit_request() -> None:
    async def body() -> None:
        async with open_loop() as loop:
            try:
                loop.call_soon(leave)
                await trio.sleep_forever()
            finally:
                fail()

    with pytest.raises(OriginalError):
        await body()


async def test_a_second_exit_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def both(loop: WorkerLoop) -> None:
        loop.call_soon(leave)
        loop.call_soon(interrupt)

    with pytest.raises(SystemExit):
        await body_with(both)
    assert "another reason to leave the loop: KeyboardInterrupt()" in caplog.text


async def test_a_failing_hook_is_an_unhandled_error(caplog: pytest.LogCaptureFixture) -> None:
    def hook(_exc: BaseException) -> None:
        fail()

    async with open_loop() as loop:
        loop.on_exit_request = hook
        loop.call_soon(leave)
        await loop.synchronize()
        assert loop.unhandled_errors == 1
    assert "Exception in on_exit_request" in caplog.text


async def test_a_hook_can_leave_too() -> None:
    def hook(_exc: BaseException) -> None:
        sys.exit(7)

    def prepare(loop: WorkerLoop) -> None:
        loop.on_exit_request = hook
        loop.call_soon(interrupt)

    with pytest.raises(SystemExit) as raised:
        await body_with(prepare)
    assert raised.value.code == 7


async def test_a_storm_of_exit_requests_does_not_starve_trio() -> None:
    def storm() -> NoReturn:
        if not stop:
            loop.call_soon(storm)
        sys.exit(1)

    requests: list[BaseException] = []
    stop: list[bool] = []
    async with open_loop() as loop:
        loop.on_exit_request = requests.append
        loop.call_soon(storm)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        stop.append(True)
    # One a batch: an exit ends it.
    assert 10 <= len(requests) <= 60


# ---- what the body raises ----


async def test_the_bodys_error_comes_out_bare_and_leaves_no_cycle() -> None:
    async def body() -> None:
        async with open_loop() as loop:
            await loop.synchronize()
            error = OriginalError()
            refs.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

    refs: list[weakref.ref[OriginalError]] = []
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OriginalError) as raised:
            await body()
        assert raised.value.__cause__ is None
        assert raised.value.__context__ is None
        del raised
        assert refs[0]() is None
    finally:
        gc.enable()


async def test_groups_of_the_body_are_not_touched() -> None:
    group = ExceptionGroup("body's", [OriginalError(), ValueError()])
    with pytest.raises(ExceptionGroup) as raised:
        async with open_loop():
            raise group
    assert raised.value is group
    assert raised.value.__cause__ is None


async def test_cancelling_from_outside_reaches_the_body_only(autojump_clock: MockClock) -> None:
    events: list[str] = []

    async def task() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            events.append("task cancelled")
            raise

    with trio.move_on_after(1) as scope:
        async with open_loop() as loop:
            loop.create_task(task())
            try:
                await trio.sleep_forever()
            finally:
                events.append("body cancelled")
                # The loop still serves the body's cleanup.
                with trio.CancelScope(shield=True):
                    await aio_as_trio(asyncio.sleep)(1)
                events.append("body ended")
    assert scope.cancelled_caught
    assert events == ["body cancelled", "body ended", "task cancelled"]


async def test_current_loop_is_restored_and_loops_can_follow_each_other() -> None:
    assert current_loop.get() is None
    async with open_loop() as first:
        pass
    assert current_loop.get() is None
    async with open_loop() as second:
        assert current_loop.get() is second
        assert second is not first


# ---- cancelled at every point (field report T4) ----


async def whole_life(events: list[str]) -> None:
    async def asyncio_part() -> None:
        await asyncio.sleep(0)
        await trio_as_aio(trio_part)()

    async def trio_part() -> None:
        await trio.lowlevel.checkpoint()

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            events.append("background ended")

    async with open_loop() as loop:
        loop.create_task(background())
        await loop.synchronize()
        await loop.run_aio_coroutine(asyncio_part())
        events.append("body done")


async def cancelled_after(
    ticks: int, function: Callable[[], Awaitable[None]]
) -> BaseException | None:
    """What `function` raised, cancelled after `ticks` rounds of Trio's scheduler."""
    raised: BaseException | None = None
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def cancel() -> None:
                with trio.CancelScope(shield=True):
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

            try:
                await function()
            except BaseException as exc:
                raised = exc
    return raised


async def test_cancelling_at_every_point_ends_and_cleans_up(autojump_clock: MockClock) -> None:
    outcomes: list[BaseException | None] = []
    for ticks in range(60):
        # Trio orders the tasks of one round by chance.
        for _ in range(4):
            events: list[str] = []
            outcomes.append(await cancelled_after(ticks, partial(whole_life, events)))
            assert current_loop.get() is None
            if outcomes[-1] is None:
                assert events == ["body done", "background ended"]
            else:
                assert isinstance(outcomes[-1], trio.Cancelled)
                assert events in ([], ["background ended"])
    # From "before the start" to "not at all".
    assert isinstance(outcomes[0], trio.Cancelled)
    assert outcomes[-1] is None


async def test_cancelling_at_every_point_shows_the_original_error(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        async with open_loop() as loop:
            loop.create_task(asyncio.sleep(3600))
            try:
                await loop.synchronize()
            finally:
                fail()

    for ticks in range(30):
        for _ in range(4):
            assert isinstance(await cancelled_after(ticks, body), OriginalError)


async def test_a_scope_cancelled_beforehand() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_loop() as loop:
            loop.call_soon(print)
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_failure_of_the_loop_itself_is_loud_and_ends() -> None:
    def break_the_loop(loop: WorkerLoop) -> None:
        loop._drain = fail  # type: ignore[method-assign]
        loop.call_soon(print)

    with trio.fail_after(5), pytest.raises(ExceptionGroup) as raised:
        await body_with(break_the_loop)
    assert raised.group_contains(OriginalError)


async def test_a_failure_between_callbacks_ends_the_body_and_asyncio_still_cleans_up() -> None:
    class Broken:
        _cancelled = False

        def _run(self) -> NoReturn:
            fail()

    events: list[str] = []

    async def task() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            events.append("task ended")

    def prepare(loop: WorkerLoop) -> None:
        loop.create_task(task())
        loop.call_soon(loop._append, Broken())

    with pytest.raises(OriginalError):
        await body_with(prepare)
    assert events == ["task ended"]


async def test_a_failure_of_the_nursery_of_functions_ends() -> None:
    class Odd(BaseException):
        pass

    async def function() -> NoReturn:
        raise Odd

    with trio.fail_after(5), pytest.raises(BaseExceptionGroup) as raised:
        await body_with(lambda loop: loop.run_trio_task(function))
    assert raised.group_contains(Odd)


async def test_a_blind_poller_ends_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(_timeout: float) -> NoReturn:
        raise OSError("blind")

    async def body() -> None:
        async with open_loop() as loop:
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(loop._selector, "select", blind)
            loop.call_soon_threadsafe(print)
            await trio.sleep_forever()

    with pytest.raises(OSError, match="blind"):
        await body()


# ---- tasks that resist ----


async def resists(until: asyncio.Event) -> None:
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


async def test_abandon_before_the_close(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    async with open_loop() as loop:
        task = loop.create_task(resists(asyncio.Event()))
        await loop.synchronize()
        abandon(task)
        assert task not in asyncio.all_tasks(loop)
    assert trio.current_time() == start
    assert not task.done()


async def test_abandon_during_the_close(autojump_clock: MockClock) -> None:
    async def gives_up_on(task: asyncio.Task[None]) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            abandon(task)

    start = trio.current_time()
    async with open_loop() as loop:
        task = loop.create_task(resists(asyncio.Event()))
        loop.create_task(gives_up_on(task))
        await loop.synchronize()
    assert trio.current_time() == start + 1
    assert not task.done()


async def test_a_resisting_task_is_left_behind_after_the_bound(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    start = trio.current_time()
    async with open_loop(close_timeout=2) as loop:
        task = loop.create_task(resists(asyncio.Event()), name="stubborn")
        await loop.synchronize()
    assert trio.current_time() == start + 2
    assert not task.done()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "stubborn" in caplog.text


async def test_a_task_that_never_yields_to_its_cancel_can_spin(autojump_clock: MockClock) -> None:
    async def spins() -> None:
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue

    async with open_loop() as loop:
        task = loop.create_task(spins())
        await loop.synchronize()
        abandon(task)
    assert not task.done()


async def test_an_abandoned_task_that_ends_after_all_does_no_harm() -> None:
    until = asyncio.Event()
    async with open_loop() as loop:
        task = loop.create_task(resists(until))
        await loop.synchronize()
        abandon(task)
        until.set()
        await loop.run_aio_future(task)
        assert task.done()


# ---- the order of the close ----


async def test_what_was_submitted_last_gets_to_start() -> None:
    events: list[str] = []

    async def task() -> None:
        events.append("task started")
        try:
            await asyncio.sleep(3600)
        finally:
            events.append("task ended")

    async def function() -> None:
        events.append("function started")
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            # The last thing that happens. Still run, though nothing waits for it.
            long_queue()
            loop.call_soon(events.append, "last callback")

    def long_queue() -> None:
        for _ in range(5 * BATCH_CALLBACKS):
            loop.call_soon(int)

    async with open_loop() as loop:
        long_queue()
        loop.call_soon(events.append, "callback")
        loop.create_task(task())
        loop.run_trio_task(function)
    assert events[:3] == ["callback", "task started", "function started"]
    assert events[3:] == ["task ended", "last callback"]


async def test_tasks_started_while_others_end_are_cancelled_and_awaited_too() -> None:
    events: list[str] = []

    async def cleanup() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            events.append("second cancelled")
            raise

    async def task() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            keep.append(asyncio.ensure_future(cleanup()))
            events.append("first ended")

    async with open_loop() as loop:
        loop.create_task(task())
        await loop.synchronize()
        # Lets the task get as far as its sleep.
        await loop.synchronize()
    keep.clear()
    assert events == ["first ended", "second cancelled"]


async def test_asyncio_and_trio_cleanup_may_need_each_other(autojump_clock: MockClock) -> None:
    events: list[str] = []

    async def trio_function() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await aio_as_trio(asyncio.sleep)(0.5)
            events.append("trio ended")

    async def task() -> None:
        try:
            await trio_as_aio(trio_function)()
        finally:
            await asyncio.sleep(0)
            events.append("asyncio ended")

    async with open_loop() as loop:
        loop.create_task(task())
        await trio.testing.wait_all_tasks_blocked()
    assert events == ["trio ended", "asyncio ended"]


async def test_a_trio_function_called_too_late_is_cancelled() -> None:
    outcomes: list[str] = []

    async def generator() -> Any:
        try:
            yield 1
        finally:
            # Generators are closed after the Trio side, when its nursery is closed.
            try:
                await asyncio.get_running_loop().trio_as_future(trio.sleep, 1)
            except asyncio.CancelledError:
                outcomes.append("cancelled")

    async def start() -> None:
        await agen.__anext__()

    agen = generator()
    async with open_loop() as loop:
        await loop.run_aio_coroutine(start())
    assert outcomes == ["cancelled"]


async def test_a_generator_that_resists_does_not_keep_the_loop_open(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def generator() -> Any:
        try:
            yield 1
        finally:
            await resists(asyncio.Event())

    async def start() -> None:
        await agen.__anext__()

    agen = generator()
    begin = trio.current_time()
    async with open_loop(close_timeout=2) as loop:
        await loop.run_aio_coroutine(start())
    assert trio.current_time() == begin + 2
    assert "left behind" in caplog.text


async def test_opening_and_using_a_loop_makes_no_cycles_that_live_on() -> None:
    async def use() -> weakref.ref[WorkerLoop]:
        async with open_loop() as loop:
            await loop.run_aio_coroutine(asyncio.sleep(0))
            return weakref.ref(loop)

    ref = await use()
    gc.collect()
    assert ref() is None


async def test_running_callbacks_makes_no_garbage() -> None:
    async def work() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        await asyncio.to_thread(len, "x")
        await loop.trio_as_future(trio.lowlevel.checkpoint)

    async with open_loop() as loop:
        await loop.run_aio_coroutine(work())
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(20):
                loop.call_soon(len, "x")
                loop.call_later(0, len, "x").cancel()
                await loop.run_aio_coroutine(asyncio.sleep(0))
            gc.collect()
            assert gc.garbage == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
