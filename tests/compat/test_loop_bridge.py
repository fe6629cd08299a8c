# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Crossing between the flavours: empty contexts as from Rust, Trio functions, threads, signals."""

from __future__ import annotations

import _asyncio
import asyncio
import concurrent.futures
import contextvars
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sniffio
import trio
from trio.testing import MockClock
from trio_asyncio import aio_as_trio, current_loop, trio_as_aio

from compat.loop import THREADS, WorkerLoop, open_loop


def call_as_rust_does(
    loop: WorkerLoop, callback: Callable[[], object], context: contextvars.Context | None
) -> None:
    """pyo3-async-runtimes calls from a thread of its own, whose context is empty."""
    thread = threading.Thread(
        target=lambda: loop.call_soon_threadsafe(callback, context=context), daemon=True
    )
    thread.start()
    thread.join()


empty_contexts = pytest.mark.parametrize("context", [None, contextvars.Context()])


@empty_contexts
async def test_rust_can_start_tasks_that_call_trio(context: contextvars.Context | None) -> None:
    async def in_trio() -> tuple[object, str]:
        await trio.lowlevel.checkpoint()
        return asyncio.get_running_loop(), sniffio.current_async_library()

    async def handler() -> None:
        results["loop"] = asyncio.get_running_loop()
        results["c loop"] = _asyncio.get_running_loop()
        results["future loop"] = asyncio.Future().get_loop()
        results["library"] = sniffio.current_async_library()
        results["task"] = asyncio.current_task()
        results["empty"] = current_loop.get()
        results["trio"] = await loop.trio_as_future(in_trio)

    def start() -> None:
        # As PyEnsureFuture does: no loop is named.
        task = asyncio.ensure_future(handler())
        results["started"] = task
        task.add_done_callback(lambda _: done.set())

    results: dict[str, Any] = {}
    done = trio.Event()
    async with open_loop() as loop:
        call_as_rust_does(loop, start, context)
        await done.wait()
        assert results["loop"] is results["c loop"] is results["future loop"] is loop
        assert results["library"] == "asyncio"
        assert results["task"] is results["started"]
        assert results["empty"] is None  # it really was the empty context
        assert results["trio"] == (loop, "trio")


async def test_rust_can_await_a_bare_awaitable() -> None:
    async def generator() -> Any:
        yield "item"

    def start() -> None:
        # An async_generator_asend is neither coroutine nor future.
        asyncio.ensure_future(agen.__anext__()).add_done_callback(done.append)
        loop.call_soon(loop.call_soon, finished.set)

    done: list[asyncio.Future[str]] = []
    finished = trio.Event()
    async with open_loop() as loop:
        agen = generator()
        call_as_rust_does(loop, start, None)
        await finished.wait()
        assert [future.result() for future in done] == ["item"]
        await aio_as_trio(agen.aclose)()


async def test_base_context_starts_trio_tasks_that_find_the_loop() -> None:
    async def asyncio_side() -> str:
        await asyncio.sleep(0)
        return "answer"

    async def trio_task() -> None:
        results.append(asyncio.get_running_loop())
        results.append(caller.get())
        # The helpers of trio-asyncio look the loop up in the context.
        results.append(await aio_as_trio(asyncio_side)())
        done.set()

    def start() -> None:
        assert current_loop.get() is None
        loop.base_context.run(nursery.start_soon, trio_task)

    caller = contextvars.ContextVar("caller", default="nobody")
    caller.set("main")
    results: list[object] = []
    done = trio.Event()
    async with open_loop() as loop, trio.open_nursery() as nursery:
        call_as_rust_does(loop, start, contextvars.Context())
        await done.wait()
    assert results == [loop, "main", "answer"]


async def test_base_context_is_a_fresh_copy() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    async with open_loop() as loop:
        loop.base_context.run(variable.set, 1)
        assert loop.base_context.run(variable.get) == 0
        # Entered twice, which one and the same context would refuse.
        outer = loop.base_context
        assert outer.run(lambda: loop.base_context.run(current_loop.get)) is loop


async def test_outside_callbacks_asyncio_sees_no_c_loop_and_trio_is_the_library() -> None:
    async with open_loop() as loop:
        await loop.synchronize()
        assert _asyncio._get_running_loop() is None
        assert sniffio.current_async_library() == "trio"
    assert asyncio._get_running_loop() is None


async def test_cancelled_caller_hears_of_it_after_the_cleanup(autojump_clock: MockClock) -> None:
    events: list[str] = []

    async def function() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await trio.sleep(1)
            events.append("cleaned up")

    async def caller() -> None:
        try:
            await trio_as_aio(function)()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async with open_loop() as loop:
        task = loop.create_task(caller())
        await trio.testing.wait_all_tasks_blocked()
        task.cancel()
        task.cancel()
        await trio.sleep(0.5)
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await loop.run_aio_future(task)
    assert events == ["cleaned up", "cancelled"]


async def test_a_trio_function_cancelled_before_its_start_does_not_run() -> None:
    async def function() -> None:
        raise AssertionError("started")

    async with open_loop() as loop:
        future = loop.trio_as_future(function)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop.run_aio_future(future)
        assert loop.unhandled_errors == 0


async def test_errors_of_trio_functions_reach_asyncio_bare() -> None:
    async def function() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async def caller() -> str:
        with pytest.raises(ZeroDivisionError):
            await asyncio.get_running_loop().trio_as_future(function)
        return "bare"

    async with open_loop() as loop:
        assert await loop.run_aio_coroutine(caller()) == "bare"


# ---- threads ----


async def test_200_simultaneous_jobs_finish_in_trio_threads() -> None:
    names: set[str] = set()

    def job(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    async def all_jobs() -> list[int]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(None, job, n) for n in range(200)))

    async with open_loop() as loop:
        assert await loop.run_aio_coroutine(all_jobs()) == list(range(200))
    assert 1 <= len(names) <= THREADS
    assert threading.current_thread().name not in names


async def test_200_simultaneous_jobs_finish_in_any_executor() -> None:
    async def all_jobs(executor: concurrent.futures.Executor | None) -> list[int]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(
            *(loop.run_in_executor(executor, pow, n, 2) for n in range(200))
        )

    squares = [n**2 for n in range(200)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with open_loop() as loop:
            assert await loop.run_aio_coroutine(all_jobs(pool)) == squares
            loop.set_default_executor(pool)
            assert await loop.run_aio_coroutine(all_jobs(None)) == squares
            with pytest.raises(TypeError):
                loop.set_default_executor(object())


async def test_errors_and_cancels_of_an_executor() -> None:
    async def caller(pool: concurrent.futures.Executor) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(pool, divmod, 1, 0)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 1, 0)
        blocked = loop.run_in_executor(pool, release.wait)
        queued = loop.run_in_executor(pool, ran.append, "queued")
        queued.cancel()
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        release.set()

    release = threading.Event()
    ran: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with open_loop() as loop:
            await loop.run_aio_coroutine(caller(pool))
    assert ran == []


async def test_to_thread_keeps_context_and_result() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def job(word: str, *, end: str) -> str:
        assert asyncio._get_running_loop() is None
        return word + variable.get() + end

    async def caller() -> str:
        variable.set("task's")
        return await asyncio.to_thread(job, "the ", end="!")

    async with open_loop() as loop:
        assert await loop.run_aio_coroutine(caller()) == "the task's!"


async def test_rule_55_a_job_is_freed_without_the_collector_when_it_ends() -> None:
    """SGLang writes metrics in threads: one job a request, which knows the request."""

    class Watched:
        """Something that a job refers to."""

    async def job() -> weakref.ref[Watched]:
        watched = Watched()
        await asyncio.to_thread(lambda: watched)
        await asyncio.get_running_loop().trio_as_future(holding, watched)  # type: ignore[attr-defined]
        return weakref.ref(watched)

    async def holding(_watched: Watched) -> None:
        await trio.lowlevel.checkpoint()

    gc.collect()
    gc.disable()
    try:
        async with open_loop() as loop:
            reference = await loop.run_aio_coroutine(job())
            # A thread of Trio's delivers its result just before it lets go of the job; it takes
            # the next one after that.
            await trio.to_thread.run_sync(int)
            await trio.testing.wait_all_tasks_blocked()
            assert reference() is None
    finally:
        gc.enable()


async def test_a_time_out_leaves_the_thread_behind_and_closing_waits_for_it() -> None:
    started, release = threading.Event(), threading.Event()
    done: list[str] = []

    def job() -> None:
        started.set()
        release.wait()
        done.append("job")

    async def releases_when_closing() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            release.set()

    async with open_loop() as loop:
        loop.create_task(releases_when_closing())
        task = loop.create_task(asyncio.to_thread(job))
        await trio.to_thread.run_sync(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop.run_aio_future(task)
        assert done == []
    assert done == ["job"]


async def test_a_stuck_thread_does_not_keep_the_loop_open(autojump_clock: MockClock) -> None:
    started, release = threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        release.wait()

    try:
        begin = trio.current_time()
        async with open_loop(close_timeout=3) as loop:
            loop.run_in_executor(None, job)
            await trio.to_thread.run_sync(started.wait)
        assert trio.current_time() - begin == 3
    finally:
        release.set()


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_the_workers_signals_are_recorded_not_installed(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    async with open_loop() as loop:
        loop.add_signal_handler(number, print, "first")
        loop.add_signal_handler(number, print, "second")
        assert signal.getsignal(number) is before
        assert loop.recorded_signal_handlers == [
            (number, print, ("first",)),
            (number, print, ("second",)),
        ]
        loop.add_signal_handler(signal.SIGTERM, repr)
        loop.add_signal_handler(signal.SIGINT, repr)
        assert loop.remove_signal_handler(number)
        assert not loop.remove_signal_handler(number)
        assert number not in [record[0] for record in loop.recorded_signal_handlers]
        assert loop.recorded_signal_handlers
    assert signal.getsignal(number) is before


async def test_other_signals_are_installed_and_replaced() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    seen: list[str] = []
    async with open_loop() as loop:
        loop.add_signal_handler(signal.SIGUSR2, seen.append, "replaced")
        loop.add_signal_handler(signal.SIGUSR2, seen.append, "handler")
        os.kill(os.getpid(), signal.SIGUSR2)
        with trio.fail_after(5):
            while not seen:
                await trio.lowlevel.checkpoint()
        assert loop.remove_signal_handler(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is before
    assert seen == ["handler"]
    assert loop.recorded_signal_handlers == []


async def test_call_soon_threadsafe_from_a_signal_handler_wakes_a_sleeping_loop() -> None:
    def handler(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(done.set)

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        async with open_loop() as loop:
            for _ in range(20):
                done = trio.Event()
                # From a thread, so that it also lands while Trio waits for events.
                await trio.to_thread.run_sync(os.kill, os.getpid(), signal.SIGUSR2)
                with trio.fail_after(5):
                    await done.wait()
    finally:
        signal.signal(signal.SIGUSR2, before)


async def test_threads_wake_the_loop_every_time() -> None:
    calls_each, threads = 2000, 4
    seen: list[int] = []

    def caller(number: int) -> None:
        for _ in range(calls_each):
            loop.call_soon_threadsafe(seen.append, number)

    async with open_loop() as loop:
        async with trio.open_nursery() as nursery:
            for number in range(threads):
                nursery.start_soon(trio.to_thread.run_sync, caller, number)
        with trio.fail_after(5):
            while len(seen) < calls_each * threads:
                await trio.lowlevel.checkpoint()
    assert [seen.count(number) for number in range(threads)] == [calls_each] * threads


async def test_the_last_of_a_threads_calls_is_never_left_lying() -> None:
    def thread() -> None:
        for _ in range(1000):
            woken = threading.Event()
            loop.call_soon_threadsafe(woken.set)
            # A lost wake-up would show here: nothing else wakes the loop.
            assert woken.wait(5)
        rounds.append(1000)

    rounds: list[int] = []
    async with open_loop() as loop:
        await trio.to_thread.run_sync(thread)
    assert rounds == [1000]


async def test_call_soon_from_the_wrong_thread_is_forgiven() -> None:
    async with open_loop() as loop:
        await trio.testing.wait_all_tasks_blocked()
        soon, later = trio.Event(), trio.Event()
        await trio.to_thread.run_sync(loop.call_soon, soon.set)
        with trio.fail_after(5):
            await soon.wait()
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(loop.call_later, 0, later.set)
        with trio.fail_after(5):
            await later.wait()


async def test_forgotten_async_generators_are_closed_on_the_loop() -> None:
    closed: list[object] = []

    async def generator() -> Any:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(asyncio.get_running_loop())
            all_closed.set()

    async def caller() -> None:
        async for _ in generator():
            break
        gc.collect()
        await all_closed.wait()

    all_closed = asyncio.Event()
    async with open_loop() as loop:
        with trio.fail_after(5):
            await loop.run_aio_coroutine(caller())
    assert closed == [loop]
