# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The asyncio loop that SGLang and the Dynamo runtime live in, on top of Trio.

trio-asyncio gives the bridge (Trio functions as asyncio futures and the reverse, contexts, async
generators, subprocesses). What it does one callback at a time, this loop does in batches:

- Ready callbacks and due timers sit in plain queues, as in asyncio. One function, `_drain()`, runs
  them, up to a budget of callbacks and of time, so that Trio's own tasks never wait for long.
- Two Trio tasks drain. The *runner* is woken by whoever queues a callback on the loop's thread,
  and by timers; the *poller* by file descriptors and other threads. Both pass exactly one Trio
  checkpoint each time round.
- File descriptors stay with asyncio's own selector. The poller waits until the selector's epoll
  object has something and then takes all of it at once: no Trio task per descriptor, and
  `add_reader` behaves as it does in asyncio, level trigger and order included.

Callbacks queued by other threads are appended first and announced second; `_idle` is set before
the last look at the queue. Whoever finds it unset may therefore skip the announcement.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import logging
import math
import os
import selectors
import signal
import sys
import threading
import time
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NoReturn, Protocol

import trio
from sniffio import thread_local as sniffio_thread
from trio_asyncio import TrioEventLoop, TrioExecutor, current_loop

# Not exported, and the only way to tell a Trio function that waits to be started.
from trio_asyncio._handles import AsyncHandle

logger = logging.getLogger(__name__)

BATCH_CALLBACKS: Final = 256
"""Most callbacks between two Trio checkpoints: about 100 µs of cheap ones."""

BATCH_SECONDS: Final = 0.001
"""A batch that has taken this long is over. A checkpoint costs about 6 µs, so this wastes < 1 %."""

SLICE_CALLBACKS: Final = 8
"""Most callbacks between two looks at the clock. A batch begins with one and doubles: a few slow
callbacks end it soon, many cheap ones seldom pay for the look."""

SWITCH_SECONDS: Final = 0.0001
"""How long the loop's thread may keep the interpreter from a thread that waits for it.

CPython's own 5 ms begin anew with each release of the interpreter lock, and a busy loop releases
it after every batch, for the microsecond of an ``epoll_wait`` that has nothing to wait for: too
short for the other thread to wake up, which then waits for seconds. So it is less than a batch.
"""

THREADS: Final = 40
"""Threads for `run_in_executor(None, ...)`: Trio's own default, but a limit of its own, so that
asyncio jobs that block can't starve Trio's cleanup of threads."""

CLOSE_SECONDS: Final = 5.0
"""How long `open_loop` waits, in all, for what it cancelled when it closes."""

RECORDED_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
"""Signals that the worker owns (DESIGN §5); SGLang and Dynamo register them more than once."""

# asyncio's own halves of the methods that trio-asyncio replaces. Their private names are unknown
# to the type stubs, hence Any.
_stock: Any = asyncio.SelectorEventLoop


class _Runnable(Protocol):
    """What the queue of ready callbacks holds: an asyncio handle, or a stand-in for one."""

    _cancelled: bool

    def _run(self) -> object: ...


class _BatchOver(BaseException):
    """Raised by an entry of the queue after which nothing more may run in this batch."""


class _StartTrio:
    """Queue entry that starts a Trio function, in its turn among the callbacks."""

    __slots__ = ("handle", "loop")
    # A cancelled one has to run too: that is what resolves its future.
    _cancelled = False

    def __init__(self, loop: WorkerLoop, handle: AsyncHandle) -> None:
        self.loop = loop
        self.handle = handle

    def _run(self) -> NoReturn:
        self.loop._start_trio(self.handle)
        raise _BatchOver


class _Stop:
    """Queue entry that stops the loop once everything queued before it has run."""

    __slots__ = ("loop", "waiter")
    _cancelled = False

    def __init__(self, loop: WorkerLoop, waiter: trio.Event) -> None:
        self.loop = loop
        self.waiter = waiter

    def _run(self) -> NoReturn:
        if not self.loop._closing:
            self.loop._stopped.set()
        self.waiter.set()
        raise _BatchOver


class _Threads(TrioExecutor):  # type: ignore[misc]  # trio_asyncio has no types
    """The default executor: Trio's worker threads, left behind when the caller is cancelled.

    asyncio's rule: cancelling the caller ends its wait at once and the thread works on. Trio's
    rule, to wait for the thread, would make a time-out around `to_thread` useless to libraries
    and would let one stuck thread keep the loop from closing.
    """

    def __init__(self) -> None:
        super().__init__(limiter=trio.CapacityLimiter(THREADS))
        self._lock = threading.Lock()
        self._working = 0
        self._idle: trio.Event | None = None
        self._token = trio.lowlevel.current_trio_token()

    async def submit(self, func: Callable[..., Any], *args: Any) -> Any:
        """Run `func(*args)` in a worker thread (Trio). Cancelling leaves the thread behind."""
        return await trio.to_thread.run_sync(
            self._work, func, *args, limiter=self._limiter, abandon_on_cancel=True
        )

    def _work(self, func: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            self._working += 1
        try:
            return func(*args)
        finally:
            with self._lock:
                self._working -= 1
                idle = None if self._working else self._idle
            if idle is not None:
                # The Trio run may have ended meanwhile; then nobody waits any more.
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(idle.set)

    async def wait_idle(self) -> None:
        """Wait until no job is running, those left behind included (Trio)."""
        with self._lock:
            if not self._working:
                return
            self._idle = trio.Event()
        await self._idle.wait()


class WorkerLoop(TrioEventLoop):  # type: ignore[misc]  # trio_asyncio has no types
    """trio-asyncio's loop, with batches, any executor, and the worker's rules for signals.

    Made by `open_loop()`. Attributes beyond asyncio's:

    - `recorded_signal_handlers`: `(signal number, callback, args)` of every SIGTERM, SIGINT and
      SIGQUIT handler that was added, in order. They are never installed; running them is the
      caller's affair (DESIGN §6, phase 6).
    - `unhandled_errors`: how often asyncio's exception handler was called: failed callbacks,
      exceptions never retrieved, resources not closed. Logged as asyncio logs them; the loop
      lives on.
    - `on_exit_request`: called, in a callback of this loop, with the `SystemExit` or
      `KeyboardInterrupt` that escaped from a callback, an asyncio task, or a Trio task of
      `run_trio_task` (SGLang's `sigterm_watchdog` ends with `sys.exit`). asyncio would leave
      `run_forever()` with it. With a hook set the loop goes on and the hook decides; it must not
      block. Without one the body of `open_loop` is cancelled and `open_loop` raises it, bare.
    """

    recorded_signal_handlers: list[tuple[int, Callable[..., object], tuple[Any, ...]]]
    unhandled_errors: int
    on_exit_request: Callable[[BaseException], None] | None

    # trio-asyncio's, set before and after our own use of them.
    _selector: Any
    _nursery: Any
    _asyncgen_dispatcher: Any

    def __init__(self) -> None:
        self._now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self._thread_ident = threading.get_ident()
        super().__init__()

        self._ready: deque[_Runnable] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_order = itertools.count()
        self._timers_cancelled = 0

        # trio-asyncio's selector only keeps book; the self-pipe it holds moves to a real one.
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._add_reader(self._ssock.fileno(), self._read_from_self)

        self._threads = self._default_executor = _Threads()

        self._runner: trio.lowlevel.Task | None = None
        self._alarm = trio.CancelScope()
        self._idle = False  # True: nobody will look at the queue unless told to
        self._announced = False  # True: a byte in the self-pipe has not been read yet
        self._starting: trio.Event | None = None
        self._closing = False
        self._finished = False

        self._joining: set[asyncio.Task[Any]] = set()
        self._joined = trio.Event()

        self._body_scope = trio.CancelScope()
        self._exit_request: BaseException | None = None

        self.recorded_signal_handlers = []
        self.unhandled_errors = 0
        self.on_exit_request = None

        self._base_context = contextvars.copy_context()
        self._base_context.run(current_loop.set, self)

    @property
    def base_context(self) -> contextvars.Context:
        """A fresh copy of the context in which this loop was opened, `current_loop` set.

        Calls from Rust come in an empty context, where trio-asyncio's helpers find no loop. Start
        Trio tasks from there with `base_context.run(nursery.start_soon, ...)`. A copy each time,
        since a context can't be entered twice and what one task sets is not for the next.
        """
        return self._base_context.copy()

    # ---- queueing ----

    def time(self) -> float:
        """Trio's current time in seconds."""
        return self._now()

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """asyncio's `call_soon`: on the loop's thread only."""
        if self._closed or self._debug:
            self._check_call(callback, "call_soon")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if self._idle:
            self._rouse()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """asyncio's `call_soon_threadsafe`: from any thread, also from a signal handler.

        Costs a system call only for the first callback that finds the loop asleep.
        """
        if self._closed or self._debug:
            self._check_call(callback, "call_soon_threadsafe")
        handle = asyncio.Handle(callback, args, self, context)
        self._append_threadsafe(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """asyncio's `call_later`; `delay` in seconds of Trio's clock."""
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """asyncio's `call_at`; `when` on Trio's clock."""
        if self._closed or self._debug:
            self._check_call(callback, "call_at")
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._add_timer(handle)
        return handle

    def _check_call(self, callback: Callable[..., object], name: str) -> None:
        self._check_closed()
        self._check_callback(callback, name)

    def _queue_handle(self, handle: Any) -> Any:
        """Take what trio-asyncio's own methods queue: callbacks, timers, Trio functions."""
        self._check_closed()
        if isinstance(handle, asyncio.TimerHandle):
            self._add_timer(handle)
        else:
            self._append(_StartTrio(self, handle) if isinstance(handle, AsyncHandle) else handle)
        return handle

    def _append(self, entry: _Runnable) -> None:
        self._ready.append(entry)
        if self._idle:
            self._rouse()

    # asyncio's `_process_events` hands over the callbacks of ready descriptors here.
    _add_callback = _append

    def _append_threadsafe(self, entry: _Runnable) -> None:
        # No lock, and no wake-up of a Trio task from here: this may be a signal handler between
        # any two bytecodes of the runner's or of Trio's own.
        self._ready.append(entry)
        if self._idle and not self._announced:
            self._announced = True
            self._write_to_self()

    def _read_from_self(self) -> None:
        # Unset first: a byte that arrives between the two lines costs one needless wake-up, the
        # other order would lose one.
        self._announced = False
        with suppress(BlockingIOError, InterruptedError):
            self._ssock.recv(4096)

    def _add_timer(self, handle: asyncio.TimerHandle) -> None:
        timers = self._timers
        if self._timers_cancelled > 100 and self._timers_cancelled * 2 > len(timers):
            # asyncio's rule: time-outs are mostly cancelled, long ones must not pile up.
            for _, _, timer in timers:
                timer._scheduled = not timer.cancelled()  # type: ignore[attr-defined]
            timers[:] = [entry for entry in timers if not entry[2].cancelled()]
            heapq.heapify(timers)
            self._timers_cancelled = 0
        heapq.heappush(timers, (handle.when(), next(self._timer_order), handle))
        handle._scheduled = True  # type: ignore[attr-defined]
        if self._idle:
            # Only the two drainers touch the alarm.
            self._rouse()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]
            self._timers_cancelled += 1

    def _rouse(self) -> None:
        """Wake the runner if it is parked (`_idle` is set)."""
        if threading.get_ident() != self._thread_ident:
            # A library that calls call_soon() from the wrong thread; asyncio forgives that too.
            self._announced = True
            self._write_to_self()
            return
        # Looked at once more, with nothing in between: the garbage collector may have run on the
        # way here, and a finalizer of a transport calls call_soon() too.
        if self._idle:
            self._idle = False
            assert self._runner is not None
            trio.lowlevel.reschedule(self._runner)

    # ---- draining ----

    def _drain(self) -> None:
        """Run what is ready and due, until nothing is or the batch is over. Raises nothing."""
        if self._starting is not None or self._stopped.is_set():
            return
        ready = self._ready
        timers = self._timers
        left = BATCH_CALLBACKS
        size = 1
        entry: _Runnable | None = None
        end = time.perf_counter() + BATCH_SECONDS
        library, sniffio_thread.name = sniffio_thread.name, "asyncio"
        # trio-asyncio patches the Python functions; code that imported asyncio's C functions
        # before it (anyio does) finds the loop by this.
        _set_running_loop(self)
        try:
            if timers:
                self._take_due_timers()
            while left >= size:
                count = len(ready)
                if count > size:
                    count = size
                for _ in range(count):
                    entry = ready.popleft()
                    if not entry._cancelled:
                        entry._run()
                left -= count
                if not ready:
                    if timers:
                        self._take_due_timers()
                    if not ready:
                        break
                if time.perf_counter() >= end:
                    break
                if size < SLICE_CALLBACKS:
                    size += size
        except _BatchOver:
            pass
        except (SystemExit, KeyboardInterrupt) as exc:
            self._request_exit(exc)
        except Exception as exc:
            # A callback's own errors never get here. This one is the loop's, which has to go on
            # as well as it can until the body's and the tasks' cleanup is over.
            self._end_body(exc)
        finally:
            # An error that a task keeps leads here by its traceback, which must not lead back.
            entry = None
            _set_running_loop(None)
            sniffio_thread.name = library

    def _take_due_timers(self) -> None:
        timers = self._timers
        now = self._now()
        while timers:
            when, _, handle = timers[0]
            if handle.cancelled():
                self._timers_cancelled -= 1
            elif when <= now:
                self._ready.append(handle)
            else:
                return
            heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]

    def _next_due(self) -> float:
        return self._timers[0][0] if self._timers else math.inf

    @trio.lowlevel.enable_ki_protection
    async def _run_ready(self) -> None:
        """The runner (Trio): drain, one checkpoint, again."""
        self._runner = trio.lowlevel.current_task()
        while not self._finished:
            # The alarm is the scope's deadline. Kept over many rounds, since timers are mostly
            # cancelled and a scope costs as much as several callbacks.
            with trio.CancelScope() as self._alarm:
                while not self._finished and self._alarm.deadline > self._now():
                    self._drain()
                    await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        if self._starting is not None:
            await self._starting.wait()
            self._starting = None
            return
        if not self._stopped.is_set():
            due = self._next_due()
            if self._ready or due <= self._now():
                await trio.lowlevel.cancel_shielded_checkpoint()
                return
            if due < self._alarm.deadline:
                self._alarm.deadline = due
        self._idle = True
        if self._ready and not self._stopped.is_set():
            self._idle = False
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        await trio.lowlevel.wait_task_rescheduled(self._alarm_rang)

    def _alarm_rang(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        # Waking up is all that is wanted; raising Cancelled to catch it again would cost more.
        self._rouse()
        return trio.lowlevel.Abort.FAILED

    @trio.lowlevel.enable_ki_protection
    async def _poll(self) -> None:
        """The poller (Trio): take every event that the selector has, and drain on the spot."""
        selector = self._selector
        try:
            while True:
                await trio.lowlevel.wait_readable(selector.fileno())
                runner_parked = self._idle
                self._idle = False
                try:
                    self._process_events(selector.select(0))
                    self._drain()
                    leftover = bool(self._ready)
                finally:
                    if runner_parked:
                        self._park_runner_again()
                if leftover:
                    # Level trigger: looking again before the callbacks ran would queue them twice.
                    await self.synchronize()
        except Exception as exc:
            # A loop that is blind to its descriptors can't serve: the worker has to end.
            self._end_body(exc)

    def _park_runner_again(self) -> None:
        """End the poller's batch: the runner slept through it and is woken only for a reason."""
        due = self._next_due()
        if due < self._alarm.deadline:
            self._alarm.deadline = due
        self._idle = True
        if self._ready or self._starting is not None:
            self._rouse()

    # ---- Trio functions called from asyncio ----

    def _start_trio(self, handle: AsyncHandle) -> None:
        context = handle._context
        if context.get(current_loop) is not self:
            # The handle's private copy, from a caller that Rust started in an empty context.
            context.run(current_loop.set, self)
        try:
            context.run(self._nursery.start_soon, self._run_trio, handle, name=handle._callback)
        except RuntimeError:
            # Too late: the loop is closing and its nursery is closed. A cancelled handle resolves
            # its future without running anything.
            handle.cancel()
            with suppress(StopIteration):
                handle._run().send(None)
            return
        # Nothing queued later may run before the function had its first step.
        self._starting = handle._started

    async def _run_trio(self, handle: AsyncHandle) -> None:
        try:
            await handle._run()
        except* (SystemExit, KeyboardInterrupt) as group:
            exc: BaseException = group
            while isinstance(exc, BaseExceptionGroup):
                exc = exc.exceptions[0]
            self._request_exit(exc)
        finally:
            # trio-asyncio's own, put on the future: through it, handle and future would keep each
            # other alive, and with them the function's arguments (rule 55).
            with suppress(AttributeError):
                del handle._fut.cancel

    # ---- descriptors: asyncio's own ----

    _add_reader = _stock._add_reader
    _add_writer = _stock._add_writer

    def _cancel_fds(self) -> None:
        for fd in self._close_files.intersection(self._selector.get_map()):
            os.close(fd)

    # ---- threads ----

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """asyncio's `run_in_executor`, with any `concurrent.futures.Executor`.

        None means Trio's worker threads, `THREADS` at a time, or what `set_default_executor()`
        was given. Cancelling the future never waits for the thread (asyncio's rule).
        """
        self._check_call(func, "run_in_executor")
        if executor is None:
            executor = self._default_executor
            self._check_default_executor()
        if isinstance(executor, TrioExecutor):
            return self.trio_as_future(executor.submit, func, *args)  # type: ignore[no-any-return]
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    set_default_executor = _stock.set_default_executor

    # ---- signals ----

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        """Record a handler of SIGTERM, SIGINT or SIGQUIT; install any other as asyncio does."""
        if sig in RECORDED_SIGNALS:
            self._check_call(callback, "add_signal_handler")
            self.recorded_signal_handlers.append((sig, callback, args))
            return
        # asyncio replaces a handler; trio-asyncio asserts that there is none (its issue 50).
        self.remove_signal_handler(sig)
        super().add_signal_handler(sig, callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Forget the records of `sig`, or uninstall its handler; False if there was none."""
        if sig in RECORDED_SIGNALS:
            kept = [record for record in self.recorded_signal_handlers if record[0] != sig]
            found = len(kept) < len(self.recorded_signal_handlers)
            self.recorded_signal_handlers[:] = kept
            return found
        return bool(super().remove_signal_handler(sig))

    def _handle_sig(self, sig: int, _frame: object) -> None:
        self._append_threadsafe(self._signal_handlers[sig])

    # ---- errors ----

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Count, then asyncio's own: the handler that was set, or a log entry."""
        self.unhandled_errors += 1
        super().call_exception_handler(context)

    # trio-asyncio's raises into the loop's nursery, which would end the worker.
    default_exception_handler = _stock.default_exception_handler

    def _request_exit(self, exc: BaseException) -> None:
        hook = self.on_exit_request
        if hook is None:
            self._end_body(exc)
            return
        try:
            hook(exc)
        except Exception as error:
            self.call_exception_handler(
                {"message": "Exception in on_exit_request", "exception": error}
            )
        except BaseException as error:
            self._end_body(error)

    def _end_body(self, exc: BaseException) -> None:
        if self._exit_request is not None:
            logger.error("another reason to leave the loop: %r", exc)
            return
        self._exit_request = exc
        self._body_scope.cancel()

    # ---- stopping and closing ----

    def is_running(self) -> bool:
        """Whether callbacks are being run."""
        # asyncio asks before its own constructor is through.
        return self._stopped is not None and not self._stopped.is_set()

    def stop(self, waiter: trio.Event | None = None) -> trio.Event:
        """Run nothing after what is queued now; sets and returns `waiter`.

        Closing runs the loop again, as `asyncio.run` does, so that its tasks can end; from then on
        this is without effect.
        """
        if waiter is None:
            waiter = trio.Event()
        if self._stopped.is_set():
            waiter.set()
        else:
            self._append(_Stop(self, waiter))
        return waiter

    @trio.lowlevel.enable_ki_protection
    async def _serve(
        self,
        closing: trio.Event,
        close_timeout: float,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """The life of the loop, as one Trio task that no cancellation from outside reaches."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as drainers:
                try:
                    deadline = await self._serve_functions(
                        drainers, closing, close_timeout, task_status
                    )
                    if self._asyncgens:
                        await self._close_generators(deadline, close_timeout)
                    with trio.move_on_at(deadline):
                        await self._threads.wait_idle()
                    await self.synchronize()
                finally:
                    self._finished = True
                    drainers.cancel_scope.cancel()

    async def _serve_functions(
        self,
        drainers: trio.Nursery,
        closing: trio.Event,
        close_timeout: float,
        task_status: trio.TaskStatus[None],
    ) -> float:
        """Until all asyncio tasks and Trio functions have ended; returns the close's deadline."""
        # The Trio functions that asyncio code calls. They report to asyncio futures, so the
        # drainers have to outlive them.
        async with trio.open_nursery() as functions:
            await self._main_loop_init(functions)
            self._stopped = trio.Event()
            drainers.start_soon(self._run_ready)
            drainers.start_soon(self._poll)
            task_status.started()
            await closing.wait()
            self._closing = True
            if self._stopped.is_set():
                self._stopped = trio.Event()
            # What was submitted before gets its chance to start (and to clean up).
            await self.synchronize()
            deadline = trio.current_time() + close_timeout
            functions.cancel_scope.cancel()
            await self._cancel_tasks(deadline, close_timeout)
        return deadline

    async def _cancel_tasks(self, deadline: float, seconds: float) -> None:
        """Cancel every asyncio task, also those that others start as they end, and wait (Trio)."""
        # Shielded: the nursery around has been cancelled.
        with trio.move_on_at(deadline, shield=True):
            while tasks := asyncio.all_tasks(self):
                for task in tasks:
                    task.cancel()
                await self._wait_ended(tasks)
        for task in asyncio.all_tasks(self):
            logger.error("left behind, ignored its cancellation for %.1f s: %r", seconds, task)
            abandon(task)

    async def _close_generators(self, deadline: float, seconds: float) -> None:
        closer = self.create_task(self.shutdown_asyncgens())
        with trio.move_on_at(deadline):
            await self._wait_ended({closer})
        await self._cancel_tasks(deadline, seconds)

    async def _wait_ended(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Wait until each task has ended or was abandoned (Trio). Unlike `run_aio_future`, this
        wait can be left."""
        self._joining = set(tasks)
        self._joined = trio.Event()
        for task in tasks:
            task.add_done_callback(self._task_ended)
        await self._joined.wait()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._joining.discard(task)
        if not self._joining:
            self._joined.set()

    def _dismantle(self) -> None:
        self._stopped.set()
        if self._asyncgen_dispatcher is not None:
            self._asyncgen_dispatcher.uninstall()
            self._asyncgen_dispatcher = None
        self._cancel_fds()
        for _, _, timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._nursery = self._task = self._token = None
        self.close()


@asynccontextmanager
async def open_loop(*, close_timeout: float = CLOSE_SECONDS) -> AsyncIterator[WorkerLoop]:
    """Run an asyncio loop for the length of the body (Trio).

    The loop runs from the first line of the body until the close below is over; cancelling from
    outside reaches the body only. On leaving, whatever the reason: what was queued runs, all
    asyncio tasks and all Trio functions called from asyncio are cancelled together and awaited,
    then async generators are closed, then running thread jobs awaited. Asyncio tasks, generators
    and threads share `close_timeout` seconds; a task that still resists is logged and left behind
    (`abandon()` does so at once). A Trio function can't be left: it has to bound its own cleanup.
    Until then other threads get the interpreter after `SWITCH_SECONDS`.

    Raises what the body raised, bare, or else the exit that asyncio code requested (see
    `WorkerLoop.on_exit_request`).
    """
    loop = WorkerLoop()
    outer_loop = current_loop.set(loop)
    outer_switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    closing, closed = trio.Event(), trio.Event()
    error: BaseException | None = None

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        try:
            await loop._serve(closing, close_timeout, task_status=task_status)
        finally:
            closed.set()

    try:
        try:
            async with trio.open_nursery() as host:
                # Shielded: started() does nothing in a nursery that is cancelled already, and the
                # shielded child would then run for ever (trio-asyncio issues 89, 115).
                with trio.CancelScope(shield=True):
                    await host.start(serve)
                try:
                    with loop._body_scope:
                        yield loop
                except BaseException as exc:
                    # Kept out of the nursery, which would wrap it in a group.
                    error = exc
                closing.set()
                with trio.CancelScope(shield=True):
                    await closed.wait()
        except BaseExceptionGroup as crash:
            # A failure of the loop itself has cancelled the body.
            raise crash from error
        if error is not None:
            raise error
        if loop._exit_request is not None:
            raise loop._exit_request
    finally:
        del error
        loop._exit_request = None
        loop._dismantle()
        sys.setswitchinterval(outer_switch_interval)
        current_loop.reset(outer_loop)


def abandon(task: asyncio.Task[Any]) -> None:
    """Hide a task that resists cancellation from its loop's final wait (DESIGN §3 Detaching).

    It goes on as long as the loop does, and is then dropped without a word. Call on the loop's
    thread.
    """
    asyncio._unregister_task(task)  # public: asyncio's docs, "Extending"
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop = task.get_loop()
    if isinstance(loop, WorkerLoop):
        loop._task_ended(task)
