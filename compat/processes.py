# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The processes below this one: see them, end them, outlive none of them.

Linux only, and light on purpose: a spawned child imports this module before anything else
(`guarded`), so what is imported at the top here is what stands between a child's start and the
moment from which it can no longer be orphaned. Trio is therefore imported where it is used.

Three kernel facts shape the module:

- A process whose parent dies is handed to the nearest ancestor that called itself a *child
  subreaper*, else to PID 1. Without one, a grandchild whose parent we have just killed leaves our
  tree and with it our sight, so that "kill until none is left" could be satisfied too early. Hence
  `become_subreaper`, which `compat.signals.install` calls once. The price is that the dead among
  the adopted must be reaped: `reap_orphans`.
- `PR_SET_PDEATHSIG` is about the *thread* that started the child, not about its process: start
  guarded children from a thread that lives as long as the process (DESIGN §5).
- Adopted children are hung on the main thread's list of children, those started by another thread
  on that thread's; `__WNOTHREAD` tells the two apart.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, NamedTuple

__all__ = [
    "Guarded",
    "adopts_orphans",
    "become_subreaper",
    "descendants",
    "guarded",
    "is_alive",
    "kill_descendants",
    "reap_orphans",
    "wait_process_exit",
]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_WNOTHREAD: Final = 0x20000000  # <linux/wait.h>; Python has no name for it

_SCAN_INTERVAL: Final = 0.01
_LEAST_SCANS: Final = 20  # a pause of the whole machine uses up any time-out, but no scans
_TRACKER_PATIENCE: Final = 0.5
_ORPHANED_STATUS: Final = 1

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# --- seeing -------------------------------------------------------------------------------------


class _Process(NamedTuple):
    pid: int
    parent: int
    started: int  # clock ticks since boot: with the pid, the identity of a process
    alive: bool


def _read_process(pid: int) -> _Process | None:
    """What /proc knows of `pid`, None when it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        raw = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    # The name, in parentheses, may hold blanks and parentheses itself: count from its end.
    fields = raw[raw.rindex(b")") + 2 :].split()
    # A leader that has left while its threads run on shows as a zombie, yet the process lives.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return _Process(pid, int(fields[1]), int(fields[19]), alive)


def _descendants(root: int) -> list[_Process]:
    if os.readlink("/proc/self") != str(os.getpid()):
        # Its numbers would be those of strangers.
        raise RuntimeError("/proc shows another PID namespace: mount it anew for this one")
    children: dict[int, list[_Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read_process(int(name))) is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[_Process] = []
    parents = [root]
    while parents:
        below = [child for parent in parents for child in children.pop(parent, ())]
        found += below
        parents = [process.pid for process in below]
    return [process for process in found if process.alive]


def descendants(pid: int | None = None) -> list[int]:
    """Living descendants of `pid` (default: of this process), parents before their children.

    Zombies are dead and don't count. One walk over /proc is not a snapshot: a process whose parent
    dies meanwhile can be missed once; as this process adopts its orphans (`become_subreaper`), the
    next walk sees it. Raises RuntimeError when /proc belongs to another PID namespace.
    """
    return [process.pid for process in _descendants(os.getpid() if pid is None else pid)]


def is_alive(pid: int) -> bool:
    """Whether process `pid` lives; a zombie does not. One look at /proc, no descriptor kept."""
    process = _read_process(pid)
    return process is not None and process.alive


def become_subreaper() -> None:
    """Adopt the orphans among our descendants from now on (PR_SET_CHILD_SUBREAPER).

    A property of this process alone: children don't inherit it. Raises OSError.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def adopts_orphans() -> bool:
    """Whether orphans come to this process: it is PID 1 of its namespace, or a subreaper."""
    flag = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(flag))
    return os.getpid() == 1 or flag.value != 0


# --- ending -------------------------------------------------------------------------------------


def _kill(process: _Process) -> None:
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:
        # Out of descriptors, or a kernel without pidfds: a kill that could in theory hit a
        # successor of that pid is better than a child that stays.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
        return
    try:
        # The pid may have found a new owner between the walk and the descriptor.
        now = _read_process(process.pid)
        if now is not None and now.started == process.started:
            # Not allowed to kill it: the caller sees it among the survivors.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def _resource_tracker_pid() -> int | None:
    """Pid of the resource tracker that this process started, if any."""
    # Private, so probed: without it the tracker is killed like any other child.
    return getattr(resource_tracker._resource_tracker, "_pid", None)


def _release_resource_tracker() -> None:
    """Let multiprocessing's resource tracker see end of file: it unlinks what is left, and exits.

    Its pipe is replaced, not closed: whatever this process still registers goes nowhere instead of
    starting a new tracker (which would unblock the stop signals of the calling thread).
    """
    fd = getattr(resource_tracker._resource_tracker, "_fd", None)
    if fd is None:
        return
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(null, fd, inheritable=False)
    finally:
        os.close(null)


def kill_descendants(*, quiet: float = 0.1, timeout: float = 2.0) -> list[int]:
    """SIGKILL every descendant, again and again, until none has been seen for `quiet` seconds.

    Blocks the calling thread, from any flavour: not for the Trio thread of a serving worker.
    Processes started meanwhile are killed too. multiprocessing's resource tracker goes last, and by
    itself: killed, it would leave shared memory behind. Nothing is reaped, so multiprocessing and
    subprocess still see how their children ended.

    Returns the pids that still lived after `timeout` seconds (and `_LEAST_SCANS` looks), empty when
    all are gone. Raises as `descendants`.
    """
    start = last_seen = time.monotonic()
    tracker = _resource_tracker_pid()
    released: float | None = None
    scans = 0
    while True:
        scans += 1
        alive = _descendants(os.getpid())
        now = time.monotonic()
        others = [process for process in alive if process.pid != tracker]
        if alive and not others:
            if released is None:
                released = now
                _release_resource_tracker()
            elif now - released > _TRACKER_PATIENCE:
                others = alive
        for process in others:
            _kill(process)
        if alive:
            last_seen = now
        elif now - last_seen >= quiet:
            return []
        if now - start >= timeout and scans >= _LEAST_SCANS:
            return [process.pid for process in alive]
        time.sleep(_SCAN_INTERVAL)


# --- waiting ------------------------------------------------------------------------------------


def _exit_code(id_type: int, which: int) -> int | None:
    """Exit code of a dead child, left for its owner to reap; None when nobody can tell us."""
    try:
        result = os.waitid(id_type, which, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


async def _poll_process_exit(pid: int) -> None:
    import trio

    first = _read_process(pid)
    while True:
        await trio.sleep(0.05)
        now = _read_process(pid)
        if first is None or now is None or not now.alive or now.started != first.started:
            return


async def wait_process_exit(pid: int) -> int | None:
    """Trio: return once process `pid` has ended, by pidfd; reaps nothing.

    Right for our children, for those of others, and for processes that are dead already, reaped or
    not. Returns the exit code as `Popen.returncode` gives it (negative: the signal that killed it),
    or None where it can't be known: not our child, or already reaped by its owner (who then knows).

    The caller must hold `pid` from before the process can have been reaped, else it may name
    another one. Where the kernel refuses a pidfd (before 5.3, some sandboxes; some kernels answer
    EINVAL for a process that has just been killed), /proc is asked every 50 ms.
    """
    import trio

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        await trio.lowlevel.checkpoint()
        return None
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM) or pid <= 0:
            raise
        await _poll_process_exit(pid)
        return _exit_code(os.P_PID, pid)
    try:
        await trio.lowlevel.wait_readable(fd)
        return _exit_code(os.P_PIDFD, fd)
    finally:
        os.close(fd)


# --- never orphaned -----------------------------------------------------------------------------


class Guarded:
    """A process target that ties its process to the one that started it: see `guarded`."""

    __slots__ = ("_target",)

    _target: Callable[..., Any]

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        global _ended_well
        result = self._target(*args, **kwargs)
        _ended_well = True
        return result

    def __repr__(self) -> str:
        return f"guarded({self._target!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        popen = get_spawning_popen()
        if popen is None or getattr(popen, "method", None) != "spawn":
            # Pickled for another purpose, or for a fork server, whose children are not ours.
            return Guarded, (self._target,)
        # The state is unpickled after the call, so the guard stands before the target's module,
        # and the arguments that follow it, are imported.
        return _guard_this_process, (os.getpid(),), self._target

    def __setstate__(self, target: Callable[..., Any]) -> None:
        self._target = target


def _guard_this_process(parent: int) -> Guarded:
    """In the child, while its target is unpickled: die with `parent`, at once if that is late."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # Asked after the signal is ordered: a parent that died before is not missed, nor one after.
    if os.getppid() != parent:
        os._exit(_ORPHANED_STATUS)
    # Blocked in the worker for the worker's sake. Here it must act: SGLang's schedulers report
    # their failure with it to a data-parallel controller, which has to die of it to be noticed.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGQUIT})
    # Before anybody else registers anything, hence run last.
    atexit.register(_skip_teardown)
    return Guarded.__new__(Guarded)


_ended_well = False


def _skip_teardown() -> None:
    """In the child, after all that was registered: the interpreter's own end is not waited for.

    It takes seconds with SGLang loaded and loses nothing that matters (DESIGN §6, phase 7), and
    whoever closes the engine waits for this process.
    """
    if _ended_well:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def guarded(target: Callable[..., Any]) -> Guarded:
    """Wrap a `multiprocessing` (spawn) target so that its process can't outlive its parent.

    SGLang's own protection begins 10 to 20 s after a child starts, once everything is imported; a
    parent killed before that leaves orphans. This one begins while the child unpickles its target,
    before any import of the target's: PR_SET_PDEATHSIG(SIGKILL), then exit if the parent is not the
    process that started it. Before that point, a child whose parent dies ends by itself or arrives
    here. (DESIGN §5 Orphans; rule 128; for `Engine.run_scheduler_process_func`,
    `Engine.run_detokenizer_process_func`.)

    Works for `target`s that are picklable by name, also when handed on to a grandchild (SGLang's
    data-parallel controller): the process that spawns is the one expected. The stop signals stay
    blocked as inherited; SIGQUIT gets its default action back.

    The child dies with the *thread* that starts it: it must live as long as the process. When its
    target has returned, it runs what ``atexit`` holds and leaves without interpreter teardown.
    """
    return Guarded(target)


# --- PID 1 --------------------------------------------------------------------------------------


def _children_of_this_thread() -> set[int]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as listing:
            return set(map(int, listing.read().split()))
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN: the whole process's children; `_zombie` sorts.
        here = os.getpid()
        everyone = (_read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return {process.pid for process in everyone if process and process.parent == here}


def _zombie(pid: int, *, reap: bool = False) -> bool:
    """Whether `pid` is a dead child of this very thread; with `reap`, it is one no more."""
    options = os.WEXITED | os.WNOHANG | _WNOTHREAD | (0 if reap else os.WNOWAIT)
    try:
        return os.waitid(os.P_PID, pid, options) is not None
    except ChildProcessError:
        return False


def _owned(pids: Collection[int]) -> set[int]:
    """Those of `pids` that somebody in this process started and may still ask for."""
    # Private, so probed. Its public form, active_children(), would reap them.
    started = list(getattr(mp_process, "_children", ()))
    owners: set[int | None] = {child.pid for child in started}
    owners.add(_resource_tracker_pid())
    if not owners.issuperset(pids):
        # subprocess keeps no list. Walking the collector's is slow, but only done for a child that
        # was never seen before, or is about to be reaped. By type(): isinstance would ask proxies.
        owners.update(
            candidate.pid
            for candidate in gc.get_objects()
            if issubclass(type(candidate), subprocess.Popen) and hasattr(candidate, "pid")
        )
    return {pid for pid in pids if pid in owners}


async def reap_orphans(*, interval: float = 1.0, patience: float = 2.0) -> None:
    """Trio service: reap adopted processes that have died, and nobody else's children.

    For a worker that is PID 1 or a subreaper (rule: issue 4, PID 1); returns at once when it is
    neither, else runs until cancelled. Looks every `interval` seconds; a steady look costs a few
    system calls.

    The kernel doesn't say who started a child, so a zombie is reaped only if all of this holds: it
    hangs on the main thread (where the adopted go; a thread that started a child keeps it); it was
    not there when the service began; neither multiprocessing nor a living `subprocess.Popen` (which
    Trio's and asyncio's process objects hold too) knows its pid, at first sight and now; and nobody
    has reaped it for `patience` seconds, while whoever waits for a pid does so at once.

    Start it before the heap is frozen: frozen objects are out of sight. Raises RuntimeError off the
    main thread.
    """
    import trio

    if threading.get_native_id() != os.getpid():
        raise RuntimeError("orphans are adopted by the main thread: reap them from there")
    await trio.lowlevel.checkpoint()
    if not adopts_orphans():
        return
    owned = _children_of_this_thread()
    dead_since: dict[int, float] = {}
    seen = set(owned)
    while True:
        await trio.sleep(interval)
        children = _children_of_this_thread()
        if fresh := children - seen:
            owned |= _owned(fresh)
        seen = children
        owned &= children
        now = trio.current_time()
        zombies = {pid for pid in children - owned if _zombie(pid)}
        dead_since = {pid: dead_since.get(pid, now) for pid in zombies}
        due = {pid for pid, since in dead_since.items() if now - since >= patience}
        for pid in due - _owned(due) if due else ():
            if _zombie(pid, reap=True):
                logger.debug("Reaped orphan %s", pid)
