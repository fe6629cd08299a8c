# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests to stop: one thread that waits for signals, from the first line to the last.

Why not a Python handler: it runs when the main thread next returns to the interpreter, which is
seconds late during a model load, a blocking call or an import, and never if that call hangs. Why
not `trio.open_signal_receiver`: it needs a running Trio, merges repeats and re-delivers on leaving.
So the signals that are ours are blocked in the main thread before there is any other (all later
threads and children inherit that), and one daemon thread takes them with `sigtimedwait`. A blocked
signal that is waited for never reaches a handler: whoever calls `signal.signal` later, as SGLang
does, changes nothing. Our own handlers are a net for a thread that somebody has unblocked (native
code; multiprocessing when it has to restart its resource tracker): they hand the signal on.

The thread counts, times, arms the last resort, and wakes Trio through its token. It must never
wait for the main thread, so it logs through a helper thread with a bound, imports nothing, and
takes one lock of its own, held for a few bytecodes.

Only `install()` changes the process; importing this module doesn't.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Final, NoReturn

from compat.processes import become_subreaper, kill_descendants

if TYPE_CHECKING:
    from types import FrameType

    import trio

__all__ = [
    "FORCED_STATUS",
    "StopLevel",
    "StopSignals",
    "clear_mask",
    "install",
    "unblocked_signals",
]

logger = logging.getLogger(__name__)

FORCED_STATUS: Final = 70  # EX_SOFTWARE, as the newest Dynamo: forced, or children not gone in time
SAME_REQUEST_SECONDS: Final = 1.0

_STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_OURS: Final = _STOP | {signal.SIGQUIT, signal.SIGUSR1}

_LOG_SECONDS: Final = 0.2
_KILL_SECONDS: Final = 1.4  # with twice the above, a way out stays below 2 s (rule 128)
_HUNG_SECONDS: Final = 5.0
_DUMP_SECONDS: Final = 1.0
_GIL_SECONDS: Final = 3.0


class StopLevel:
    """Which request to stop a signal belongs to: pure counting (rule 122).

    The first signal opens level 1 (stop); a later one level 2 (migrate now); a later one still
    level 3 (out). Every level has the same window: a signal less than `SAME_REQUEST_SECONDS` after
    the one that *opened* the current level is the same request, whatever its kind, because one
    request often arrives twice (to the process group and from a supervisor, as SIGINT and as
    SIGTERM). So two signals close together after some seconds mean "migrate now", never "out": the
    migration keeps the second that it needs. Signals in a window don't prolong it.
    """

    def __init__(self) -> None:
        self.level = 0
        self._opened = float("-inf")

    def count(self, now: float) -> bool:
        """Count a signal that came at `now` (seconds); whether it opened a new level."""
        if self.level == 3 or now - self._opened < SAME_REQUEST_SECONDS:
            return False
        self.level += 1
        self._opened = now
        return True


@dataclass(frozen=True, slots=True)
class _Attached:
    token: trio.lowlevel.TrioToken
    run_finished: type[Exception]
    notify: Callable[[int], None]
    engine_failed: Callable[[], None] | None
    dump: Callable[[], None] | None
    last_resort: float | None


def _write_stderr(text: str, *, patience: float = _LOG_SECONDS) -> bool:
    """Write to descriptor 2 without ever blocking longer than `patience` on a full pipe."""
    rest = text.encode(errors="replace")
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    try:
        while rest:
            if not poll.poll(patience * 1000):
                return False
            # A pipe that polls writable takes a page without blocking.
            rest = rest[os.write(2, rest[:4096]) :]
    except OSError:
        return False
    return True


def _all_stacks() -> str:
    # Not straight to stderr: faulthandler holds the GIL while it writes, and a full pipe would stop
    # the whole process.
    with open(os.memfd_create("stacks"), "w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def _call(function: Callable[..., object], *args: object) -> None:
    """On the Trio thread: an exception that left here would take the whole run with it."""
    try:
        function(*args)
    except Exception:
        logger.exception("A signal's callback failed: %r", function)


class StopSignals:
    """The process's requests to stop, made by `install()`. Any thread, except where said."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = StopLevel()
        self._attached: _Attached | None = None
        self.first_signal: int | None = None
        """Number of the signal that asked first; None: nobody has."""
        self.first_signal_at: float | None = None
        """When, on `time.monotonic`'s clock, seconds."""
        self.before_leaving: Callable[[], object] | None = None
        """Called in a thread of its own while `leave`, with a status other than 0, kills what is
        below us; in the same time."""
        self._doing = ("", 0.0)
        self._engine_failed_early = False
        self._last_resort: tuple[float, str] | None = None
        self._dump_due: float | None = None
        self._leaving: int | None = None
        # Filled by the net handlers, on the main thread.
        self._caught: collections.deque[int] = collections.deque()
        self._thread = threading.Thread(target=self._watch, name="stop-signals", daemon=True)

    def doing(self, what: str) -> None:
        """What the process does from here on, for whoever asks while it starts."""
        self._doing = (what, time.monotonic())

    @property
    def stage(self) -> str:
        """What it is doing, and for how long; empty before the first `doing`."""
        what, since = self._doing
        return f"{what}, for {time.monotonic() - since:.1f} s" if what else ""

    @property
    def level(self) -> int:
        """Requests to stop so far: 0 none, 1 stop, 2 migrate now, 3 out (see `StopLevel`)."""
        return self._stop.level

    def attach(
        self,
        notify: Callable[[int], None],
        *,
        engine_failed: Callable[[], None] | None = None,
        dump: Callable[[], None] | None = None,
        last_resort: float | None = None,
    ) -> None:
        """Trio: hand what comes from now on to this Trio run, whose thread the callbacks run on.

        `notify(level)` is called once for each new level, 1 and 2 (3 leaves by itself);
        `engine_failed()` for each SIGQUIT, also for one that came before; `dump()` for SIGUSR1 (if
        Trio hasn't run it within 1 s, all thread stacks are written instead, which show why). They
        wake a sleeping Trio; an exception of theirs is logged. After Trio has ended they are no
        longer called, level 3 and the last resort still act. A later `attach` replaces this one.

        `last_resort`: seconds from the first request to stop until the process is ended, whatever
        its loop does (`arm_last_resort`): a loop that is blocked for good never hears `notify`.

        Until then the first request ends the process with status 0 (rule 128): nothing has been
        registered. If that is under way, this call doesn't return.
        """
        import trio

        attached = _Attached(
            trio.lowlevel.current_trio_token(),
            trio.RunFinishedError,
            notify,
            engine_failed,
            dump,
            last_resort,
        )
        with self._lock:
            leaving = self._leaving
            early = self._engine_failed_early and engine_failed is not None
            if leaving is None:
                self._attached = attached
                self._engine_failed_early = self._engine_failed_early and not early
        if leaving is not None:
            self._await_leaving()
        if early and engine_failed is not None:
            self._deliver(engine_failed)

    def arm_last_resort(self, seconds: float, *, reason: str) -> None:
        """End the process with status 70 in `seconds` from now, descendants first, if still there.

        Absolute: nothing postpones it but `disarm()` or a new call, which replaces it. Holds while
        the main thread is blocked, or a non-daemon thread lives. `reason` is logged then: say which
        step should have ended. A main thread that holds the GIL for good stops our thread too; for
        that, faulthandler writes all stacks and exits with status 1, `_GIL_SECONDS` later.
        """
        with self._lock:
            self._last_resort = (time.monotonic() + seconds, reason)
        faulthandler.dump_traceback_later(max(seconds, 0.0) + _GIL_SECONDS, exit=True, file=2)
        self._wake()

    def disarm(self) -> None:
        """Take `arm_last_resort` back."""
        faulthandler.cancel_dump_traceback_later()
        with self._lock:
            self._last_resort = None

    def leave(
        self, status: int, message: str, *args: object, severity: int = logging.ERROR
    ) -> NoReturn:
        """End the process within 2 s: log a line, kill descendants until none is left, `os._exit`.

        From any thread; blocks the calling one. Status 70 if descendants survive. The first to
        leave decides the status; neither `sys.exit` nor the end of the main thread overtakes it.
        """
        with self._lock:
            under_way = self._leaving
            if under_way is None:
                self._leaving = status
        if under_way is not None:
            self._await_leaving()
        try:
            # The main thread may see its children die, and would report that as its failure.
            sys.excepthook = lambda *_: None
            said = self._say(severity, message, *args)
            killed_by = time.monotonic() + _KILL_SECONDS
            last_act = self._last_act() if status else None
            try:
                survivors = kill_descendants(timeout=_KILL_SECONDS)
            except Exception:
                status = FORCED_STATUS
                _write_stderr(f"Descendants not killed: {traceback.format_exc()}")
            else:
                if survivors:
                    status = FORCED_STATUS
                    _write_stderr(f"Killed, but not gone in time: {survivors}\n")
            if last_act is not None:
                last_act.join(max(0.0, killed_by - time.monotonic()))
            if said is not None:
                said.join(_LOG_SECONDS)
            if said is None or said.is_alive():
                _write_stderr(message % args + "\n")
        finally:
            os._exit(status)

    def _last_act(self) -> threading.Thread | None:
        if self.before_leaving is None:
            return None
        thread = threading.Thread(target=_call, args=(self.before_leaving,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads to be had
            return None
        return thread

    def _await_leaving(self) -> NoReturn:
        # Generous: whoever leaves has bounds of its own, and after a pause of the whole machine
        # must not be overtaken by the one who only waits.
        time.sleep(_HUNG_SECONDS)
        os._exit(FORCED_STATUS)

    def hold_exit(self) -> None:
        """Any thread. If a way out is under way, wait for it: this does not return then."""
        if self._leaving is not None:
            self._await_leaving()

    # --- the thread -----------------------------------------------------------------------------

    def _start(self) -> None:
        # In this order: a signal meanwhile stays pending; the net, once it can be hit, has a thread
        # to hand it to.
        signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
        for number in _OURS:
            signal.signal(number, self._net)
        self._thread.start()
        # Registered before anybody else's, hence run after them.
        atexit.register(self.hold_exit)
        os.register_at_fork(after_in_child=_forget)

    def _net(self, signum: int, frame: FrameType | None) -> None:
        self._caught.append(signum)
        self._wake()

    def _wake(self) -> None:
        signal.pthread_kill(self._thread.ident or 0, signal.SIGUSR1)

    def _watch(self) -> None:
        while True:
            try:
                self._step()
            except Exception:
                # A process whose signals nobody takes can't be stopped: go on whatever it was.
                self._say(logging.ERROR, "Signal handling failed", exc_info=sys.exc_info())
                time.sleep(0.1)

    def _step(self) -> None:
        signum = self._next_signal()
        now = time.monotonic()
        if signum in _STOP:
            self._on_stop(signum, now)
        elif signum == signal.SIGQUIT:
            self._on_engine_failed()
        elif signum == signal.SIGUSR1:
            self._on_dump(now)
        with self._lock:
            last_resort, dump_due = self._last_resort, self._dump_due
            if dump_due is not None and dump_due <= now:
                self._dump_due = None
        if last_resort is not None and last_resort[0] <= now:
            self.leave(
                FORCED_STATUS,
                "Last resort: %s; killing descendants, leaving with status %s",
                last_resort[1],
                FORCED_STATUS,
            )
        if dump_due is not None and dump_due <= now:
            self._dump_stacks(f"Trio has not answered for {_DUMP_SECONDS:g} s; ")

    def _next_signal(self) -> int | None:
        """The next signal; None when it is time to look at the deadlines."""
        if self._caught:
            return self._caught.popleft()
        with self._lock:
            due = [when for when in (self._dump_due,) if when is not None]
            if self._last_resort is not None:
                due.append(self._last_resort[0])
        if due:
            info = signal.sigtimedwait(_OURS, max(min(due) - time.monotonic(), 0.0))
        else:
            info = signal.sigwaitinfo(_OURS)
        if info is None:
            return None
        # One of our own is a nudge (`_wake`), never a question. By sender alone: si_code can't
        # tell, as glibc's sigtimedwait reports SI_TKILL as SI_USER, and a flag could be overtaken.
        if info.si_signo == signal.SIGUSR1 and info.si_pid == os.getpid():
            return self._caught.popleft() if self._caught else None
        return info.si_signo

    def _on_stop(self, signum: int, now: float) -> None:
        if not self._stop.count(now):
            return
        with self._lock:
            attached = self._attached
        level = self._stop.level
        if level == 1:
            self.first_signal = int(signum)
            line = "Received signal %s, starting graceful shutdown"
            if attached is None:
                self.leave(0, line, int(signum), severity=logging.INFO)
            self.first_signal_at = now
            if attached.last_resort is not None:
                self.arm_last_resort(attached.last_resort, reason="asked to stop, and still here")
            self._say_soon(logging.INFO, line, int(signum))
        elif level == 2:
            self._say_soon(logging.WARNING, "Received signal %s again, migrating now", int(signum))
        if level == 3 or attached is None:
            self.leave(
                FORCED_STATUS,
                "Received signal %s once more, leaving with status %s",
                int(signum),
                FORCED_STATUS,
            )
        self._deliver(attached.notify, level)

    def _on_engine_failed(self) -> None:
        self._say_soon(logging.ERROR, "Received SIGQUIT: a process of the engine reports a failure")
        with self._lock:
            callback = self._attached.engine_failed if self._attached else None
            if callback is None:
                self._engine_failed_early = True
        if callback is not None:
            self._deliver(callback)

    def _on_dump(self, now: float) -> None:
        with self._lock:
            callback = self._attached.dump if self._attached else None
            if callback is not None:
                self._dump_due = now + _DUMP_SECONDS
        if callback is None:
            self._dump_stacks("")
        elif not self._deliver(self._answer_dump, callback):
            with self._lock:
                self._dump_due = None
            self._dump_stacks("Trio has ended; ")

    def _answer_dump(self, dump: Callable[[], None]) -> None:
        with self._lock:
            self._dump_due = None
        dump()

    def _deliver(self, function: Callable[..., None], *args: object) -> bool:
        """Run `function` on the Trio thread, soon; False when Trio has ended."""
        attached = self._attached
        if attached is None:
            return False
        try:
            attached.token.run_sync_soon(_call, function, *args)
        except attached.run_finished:
            return False
        return True

    # --- saying ---------------------------------------------------------------------------------

    def _dump_stacks(self, why: str) -> None:
        stage = f" ({self.stage})" if self.stage else ""
        _write_stderr(f"Received SIGUSR1{stage}: {why}stacks of all threads:\n{_all_stacks()}")

    def _say(
        self, severity: int, message: str, *args: object, exc_info: Any = None
    ) -> threading.Thread | None:
        """Log from a thread of its own: whoever holds logging's locks may be blocked for ever."""
        line = threading.Thread(
            target=self._log, args=(severity, message, args, exc_info), daemon=True
        )
        try:
            line.start()
        except RuntimeError:  # no more threads to be had
            return None
        return line

    def _say_soon(self, severity: int, message: str, *args: object) -> None:
        """As `_say`, and normally said before what follows from it is."""
        line = self._say(severity, message, *args)
        if line is not None:
            line.join(_LOG_SECONDS)

    def _log(self, severity: int, message: str, args: tuple[object, ...], exc_info: Any) -> None:
        if logger.hasHandlers() and (self._attached or logger.isEnabledFor(severity)):
            logger.log(severity, message, *args, exc_info=exc_info)
        else:
            # Logging is set up late, by an import: until then the line would be lost.
            _write_stderr(message % args + "\n")


_installed: StopSignals | None = None


def install() -> StopSignals:
    """Take SIGTERM, SIGINT, SIGQUIT and SIGUSR1, for the life of the process.

    The first statement under the `__main__` guard, before any slow import, on the main thread, with
    no other thread yet (a thread that exists doesn't get the mask; ValueError off the main thread).
    Called again, returns the same object. Also makes this process a subreaper (`compat.processes`).

    multiprocessing's resource tracker is started here because starting it *un*blocks SIGTERM and
    SIGINT; the handlers are there before that, so that nothing kills us in between.
    """
    global _installed
    if _installed is None:
        signals = StopSignals()
        signals._start()
        _installed = signals
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
        become_subreaper()
    return _installed


def _forget() -> None:
    """In a child by fork alone: our thread isn't there, so the net would hand signals to nobody."""
    global _installed
    if _installed is not None:
        _installed = None
        for number in _OURS:
            signal.signal(number, signal.SIG_DFL)


def clear_mask() -> None:
    """Let this thread take our signals again: in a child, before it installs handlers of its own.

    For children that must act on SIGTERM and don't call `install()`. Usable as `preexec_fn`, though
    `unblocked_signals()` around the start of the child is safer in a process with threads.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)


@contextlib.contextmanager
def unblocked_signals() -> Iterator[None]:
    """Children that this thread starts inside the block get our signals unblocked.

    For children that must act on SIGTERM (Dynamo's gateway children, SGLang's weight-cache daemon).
    A signal that this thread itself takes meanwhile is not lost: the net hands it on.
    """
    previous = signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
