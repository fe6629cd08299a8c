# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Descendants, their ends and their orphans, with real processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from compat import processes
from compat.processes import descendants, guarded, is_alive, wait_process_exit

from .real_process import ROOT, running


def exit_with_seven() -> None:
    sys.exit(7)


def start(*command: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=stdout)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class TestAlive:
    def test_a_zombie_is_dead(self) -> None:
        assert is_alive(os.getpid())
        with start("sleep", "600") as child:
            before = open_descriptors()
            assert is_alive(child.pid)
            assert open_descriptors() == before
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert not is_alive(child.pid)
        # Nor is one that has been reaped.
        assert not is_alive(child.pid)


class TestDescendants:
    def test_children_and_theirs_but_not_the_dead(self, tmp_path: Path) -> None:
        main = """
        dead = subprocess.Popen(["true"])
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE)
        below = int(shell.stdout.readline())
        say(processes.descendants() == [shell.pid, below])
        say(processes.descendants(shell.pid) == [below])
        """
        with running(tmp_path, main) as script:
            assert [script.line(), script.line()] == ["True", "True"]

    def test_orphans_of_killed_children_stay_in_sight(self, tmp_path: Path) -> None:
        main = """
        def orphan():
            shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"],
                                     stdout=subprocess.PIPE)
            below = int(shell.stdout.readline())
            shell.kill()
            shell.wait()
            return below

        say(processes.adopts_orphans(), orphan() in processes.descendants())
        processes.become_subreaper()
        say(processes.adopts_orphans(), orphan() in processes.descendants())
        """
        with running(tmp_path, main) as script:
            assert script.line() == "False False"
            assert script.line() == "True True"

    def test_odd_names_are_parsed(self, tmp_path: Path) -> None:
        odd = tmp_path / "a) Z 1 (b"
        shutil.copy(shutil.which("sleep") or "", odd)
        with subprocess.Popen([odd, "600"]) as child:
            try:
                assert child.pid in descendants()
            finally:
                child.kill()

    def test_a_leader_that_left_its_threads_is_alive(self, tmp_path: Path) -> None:
        module = """
        def leave_threads():
            threading.Thread(target=time.sleep, args=(600,)).start()
            say("left")
            ctypes.CDLL(None).pthread_exit(None)
        """
        main = """
        child = multiprocessing.get_context("fork").Process(target=leave_threads)
        child.start()
        while " Z " not in open(f"/proc/{child.pid}/stat").read():
            time.sleep(0.001)
        say(processes.descendants() == [child.pid])
        say(processes.kill_descendants())
        """
        with running(tmp_path, main, module) as script:
            assert [script.line(), script.line(), script.line()] == ["left", "True", "[]"]


class TestKillDescendants:
    def test_until_none_is_left_of_a_tree_that_grows(self, tmp_path: Path) -> None:
        # Each child starts the next generation in a new session, and waits for a while itself.
        grow = "import os, subprocess, sys, time; " + (
            "subprocess.Popen([sys.executable, '-c', os.environ['GROW']], start_new_session=True); "
            "time.sleep(1)"
        )
        main = f"""
        processes.become_subreaper()
        os.environ["GROW"] = {grow!r}
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", os.environ["GROW"]])
        while len(processes.descendants()) < 8:
            time.sleep(0.001)
        say(processes.kill_descendants(timeout=20))
        say(processes.descendants())
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "[]"
            assert script.line() == "[]"
            assert script.living() == [script.process.pid]

    def test_owners_still_learn_how_their_children_ended(self, tmp_path: Path) -> None:
        module = "def child():\n    time.sleep(600)\n"
        main = """
        spawned = multiprocessing.get_context("spawn").Process(target=child)
        spawned.start()
        popen = subprocess.Popen(["sleep", "600"])
        say(processes.kill_descendants())
        spawned.join()
        say(spawned.exitcode, popen.wait())
        """
        with running(tmp_path, main, module) as script:
            assert [script.line(), script.line()] == ["[]", "-9 -9"]

    def test_survivors_are_named_after_the_time_out(self, tmp_path: Path) -> None:
        main = """
        processes._kill = lambda process: None
        child = subprocess.Popen(["sleep", "600"])
        say(processes.kill_descendants(timeout=0.1) == [child.pid])
        """
        with running(tmp_path, main) as script:
            assert script.line() == "True"

    def test_the_resource_tracker_unlinks_and_is_not_started_again(self, tmp_path: Path) -> None:
        main = """
        from multiprocessing import resource_tracker
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=64)
        tracker = resource_tracker._resource_tracker._pid
        say(tracker in processes.descendants())
        say(processes.kill_descendants())
        say(os.path.exists(f"/dev/shm/{memory.name}"))
        resource_tracker.register(memory._name, "shared_memory")
        say(processes.descendants())
        os._exit(0)
        """
        with running(tmp_path, main) as script:
            assert script.lines() == ["True", "[]", "False", "[]"]

    def test_a_resource_tracker_that_hangs_is_killed(self, tmp_path: Path) -> None:
        main = """
        from multiprocessing import resource_tracker
        resource_tracker.ensure_running()
        os.kill(resource_tracker._resource_tracker._pid, signal.SIGSTOP)
        say(processes.kill_descendants(timeout=20))
        """
        with running(tmp_path, main) as script:
            assert script.line() == "[]"
            assert script.living() in ([], [script.process.pid])


@pytest.mark.parametrize("by", ["pidfd", "polling"])
class TestWaitProcessExit:
    @pytest.fixture(autouse=True)
    def way(self, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int) -> int:
            os.kill(pid, 0)
            raise OSError(errno.ENOSYS, "no pidfds here")

        if by == "polling":
            monkeypatch.setattr(processes.os, "pidfd_open", refuse)

    async def test_exit_code_without_reaping(self) -> None:
        child = start("sh", "-c", "exit 7")
        assert await wait_process_exit(child.pid) == 7
        assert await wait_process_exit(child.pid) == 7  # dead by now, and still not reaped
        assert child.wait() == 7

    async def test_killed(self) -> None:
        child = start("sleep", "600")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait() -> None:
                assert await wait_process_exit(child.pid) == -9

            await trio.testing.wait_all_tasks_blocked()
            child.kill()
        assert child.wait() == -9

    async def test_reaped_already(self) -> None:
        child = start("true")
        child.wait()
        assert await wait_process_exit(child.pid) is None

    async def test_not_our_child(self) -> None:
        shell = start("sh", "-c", "sleep 600 & echo $!; wait; exit 3", stdout=subprocess.PIPE)
        with shell:
            assert shell.stdout is not None
            below = int(shell.stdout.readline())
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def wait() -> None:
                    assert await wait_process_exit(below) is None

                await trio.testing.wait_all_tasks_blocked()
                os.kill(below, signal.SIGKILL)
        assert shell.returncode == 3

    async def test_multiprocessing_keeps_its_child(self) -> None:
        child = multiprocessing.get_context("fork").Process(target=exit_with_seven)
        child.start()
        assert child.pid is not None
        assert await wait_process_exit(child.pid) == 7
        child.join()
        assert child.exitcode == 7
        assert await wait_process_exit(child.pid) is None

    async def test_cancelled(self) -> None:
        child = start("sleep", "600")
        before = open_descriptors()
        with trio.move_on_after(0.01) as scope:
            await wait_process_exit(child.pid)
        assert scope.cancelled_caught
        assert open_descriptors() == before
        child.kill()
        child.wait()

    async def test_nonsense_is_refused(self) -> None:
        with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
            await wait_process_exit(-1)


SLOW_MODULE = """
import time
print("importing", flush=True)
time.sleep(600)

class Argument:
    pass

def target():
    pass
"""


class TestGuarded:
    def test_runs_its_target_with_stop_signals_still_blocked(self, tmp_path: Path) -> None:
        module = """
        def target(*args, **kwargs):
            say(args, kwargs)
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            say(signal.SIGTERM in blocked, signal.SIGINT in blocked, signal.SIGQUIT in blocked)
            deadly = ctypes.c_int()
            ctypes.CDLL(None).prctl(2, ctypes.byref(deadly))  # PR_GET_PDEATHSIG
            say(deadly.value == signal.SIGKILL)
        """
        main = """
        signals.install()
        child = multiprocessing.get_context("spawn").Process(
            target=processes.guarded(target), args=(1,), kwargs={"key": "value"}
        )
        child.start()
        child.join()
        say(child.exitcode)
        """
        with running(tmp_path, main, module) as script:
            assert script.lines() == ["(1,) {'key': 'value'}", "True True False", "True", "0"]

    @pytest.mark.parametrize(("ending", "said"), [("pass", []), ("1 / 0", ["teardown"])])
    def test_a_target_that_ends_well_is_not_torn_down(
        self, tmp_path: Path, ending: str, said: list[str]
    ) -> None:
        module = f"""
        import atexit

        class Dear:
            def __del__(self):
                os.write(1, b"teardown\\n")

        def target():
            global dear
            dear = Dear()
            atexit.register(say, "atexit")
            {ending}
        """
        main = """
        signals.install()
        child = multiprocessing.get_context("spawn").Process(target=processes.guarded(target))
        child.start()
        child.join()
        say(child.exitcode)
        """
        with running(tmp_path, main, module) as script:
            assert script.lines() == ["atexit", *said, str(len(said))]

    @pytest.mark.parametrize("slow", ["target", "argument"])
    @pytest.mark.parametrize("protected", [True, False])
    def test_a_child_that_still_imports_dies_with_its_parent(
        self, tmp_path: Path, slow: str, protected: bool
    ) -> None:
        # In the parent the slow module is a stub: only the child, unpickling, imports it.
        (tmp_path / "slow.py").write_text(SLOW_MODULE)
        module = f"""
        import types

        def stub():
            slow = types.ModuleType("slow")
            exec("class Argument: pass\\ndef target(): pass", slow.__dict__)
            sys.modules["slow"] = slow
            return slow

        def quick(argument):
            pass

        guard = processes.guarded if {protected} else lambda target: target
        """
        main = f"""
        slow = stub()
        signals.install()
        start = multiprocessing.get_context("spawn").Process
        if {slow!r} == "target":
            start(target=guard(slow.target)).start()
        else:
            start(target=guard(quick), args=(slow.Argument(),)).start()
        block()
        """
        with running(tmp_path, main, module) as script:
            assert script.line() == "importing"
            os.kill(script.process.pid, signal.SIGKILL)
            assert script.status() == -9
            if protected:
                script.wait_until_living(0)
            else:
                # What the guard is for: this one would stay for its 600 s.
                time.sleep(0.5)
                assert len(script.living()) >= 1

    @pytest.mark.parametrize("after", [0.0, 0.05, 0.15])
    def test_parent_killed_right_after_the_start(self, tmp_path: Path, after: float) -> None:
        (tmp_path / "slow.py").write_text(SLOW_MODULE)
        module = """
        import types
        slow = types.ModuleType("slow")
        exec("def target(): pass", slow.__dict__)
        """
        main = """
        sys.modules["slow"] = slow
        signals.install()
        for _ in range(3):
            multiprocessing.get_context("spawn").Process(
                target=processes.guarded(slow.target)
            ).start()
        say("started")
        block()
        """
        with running(tmp_path, main, module) as script:
            while (line := script.line()) == "importing":
                pass  # the first child, ahead of the third's start
            assert line == "started"
            time.sleep(after)
            os.kill(script.process.pid, signal.SIGKILL)
            assert script.status() == -9
            script.wait_until_living(0)

    def test_handed_on_it_expects_the_process_that_spawns(self, tmp_path: Path) -> None:
        module = """
        def scheduler(word):
            say(word)

        def controller(run_scheduler):
            child = multiprocessing.get_context("spawn").Process(target=run_scheduler, args=("up",))
            child.start()
            child.join()
            sys.exit(child.exitcode)
        """
        main = """
        child = multiprocessing.get_context("spawn").Process(
            target=controller, kwargs={"run_scheduler": processes.guarded(scheduler)}
        )
        child.start()
        child.join()
        say(child.exitcode)
        """
        with running(tmp_path, main, module) as script:
            assert script.lines() == ["up", "0"]

    def test_a_child_of_somebody_else_leaves_at_once(self) -> None:
        code = f"""
import os
from compat import processes
processes._guard_this_process(os.getppid())
print("ours", flush=True)
processes._guard_this_process({os.getpid()} + 1)
print("not reached", flush=True)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert (done.returncode, done.stdout) == (1, "ours\n")

    def test_pickled_for_anything_else_it_guards_nobody(self) -> None:
        copy = pickle.loads(pickle.dumps(guarded(exit_with_seven)))
        assert repr(copy) == repr(guarded(exit_with_seven))
        with pytest.raises(SystemExit):
            copy()

    def test_the_module_is_light(self) -> None:
        code = (
            "import sys; import compat.processes;"
            "print(sorted({'trio', 'asyncio', 'torch', 'sglang', 'dynamo'} & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert done.stdout == "[]\n"


REAPER = """
import trio, trio.testing

def orphan():
    # Its parent, a shell, is gone before anybody can see the two together.
    subprocess.run(["sh", "-c", "sleep 0.05 &"], check=True)

def zombies():
    found = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        process = processes._read_process(pid)
        if process is not None and process.parent == os.getpid() and not process.alive:
            found.add(pid)
    return found

def exits_with_7():
    sys.exit(7)

def refuse(path):
    raise FileNotFoundError(path)

class InThread(threading.Thread):
    pid = exitcode = None
    asked = threading.Event()

    def run(self):
        self.pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 8"], os.environ)
        self.asked.wait()
        self.exitcode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

async def main():
    spawn = multiprocessing.get_context("spawn").Process
    # Known to its owner by nothing but its pid.
    before = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: processes.reap_orphans(interval=0.05, patience=0.2))
        await trio.testing.wait_all_tasks_blocked()
        spawned = spawn(target=exits_with_7)
        spawned.start()
        popen = subprocess.Popen(["sh", "-c", "exit 5"])
        process = await trio.lowlevel.open_process(["sh", "-c", "exit 6"])
        in_thread = InThread()
        in_thread.start()
        while in_thread.pid is None:
            await trio.sleep(0.01)
        for _ in range(5):
            orphan()
        ours = {before, spawned.pid, popen.pid, process.pid, in_thread.pid}
        while await processes.wait_process_exit(spawned.pid) is None:
            await trio.sleep(0.01)
        await trio.sleep(0.6)
        while not zombies() <= ours:
            await trio.sleep(0.01)
        await trio.sleep(0.6)
        say(zombies() == ours)
        nursery.cancel_scope.cancel()
    spawned.join()
    in_thread.asked.set()
    in_thread.join()
    alone = os.waitstatus_to_exitcode(os.waitpid(before, 0)[1])
    say(alone, popen.wait(), await process.wait(), spawned.exitcode, in_thread.exitcode)
"""


class TestReapOrphans:
    @pytest.mark.parametrize("kernel_lists_children", [True, False])
    def test_as_subreaper(self, tmp_path: Path, kernel_lists_children: bool) -> None:
        main = "" if kernel_lists_children else "processes.open = refuse\n"
        main += "signals.install()\nsay(os.getpid(), processes.adopts_orphans())\ntrio.run(main)"
        with running(tmp_path, main, REAPER) as script:
            assert script.line() == f"{script.process.pid} True"
            assert [script.line(), script.line()] == ["True", "4 5 6 7 8"]
            assert script.status() == 0

    def test_as_pid_1(self, tmp_path: Path) -> None:
        namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        try:
            subprocess.run([*namespace, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no PID namespace to be had here: {error}")
        main = "say(os.getpid(), processes.adopts_orphans())\ntrio.run(main)\nsay('done')\nblock()"
        with running(
            tmp_path, "stop = signals.install()\n" + main, REAPER, command=namespace
        ) as script:
            assert script.line() == "1 True"
            assert [script.line(), script.line()] == ["True", "4 5 6 7 8"]
            assert script.line() == "done"
            (worker,) = descendants(script.process.pid)[:1]
            os.kill(worker, signal.SIGTERM)
            assert script.status() == 0

    async def test_elsewhere_it_has_nothing_to_do(self) -> None:
        with trio.fail_after(20):
            await processes.reap_orphans()

    async def test_off_the_main_thread_it_refuses(self) -> None:
        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="main thread"):
                trio.run(processes.reap_orphans)

        await trio.to_thread.run_sync(elsewhere)
