# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Stop requests, with real processes and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from compat.signals import SAME_REQUEST_SECONDS, StopLevel

from .real_process import ROOT, running

STOP_LINE = "Received signal {}, starting graceful shutdown"

# A Trio run that reports what it is told, and serves until it is told to end.
SERVE = """
import trio

def serve(stop, body=trio.sleep_forever, **callbacks):
    async def main():
        stop.attach(lambda level: say("level", level), **callbacks)
        say("attached")
        await body()
    trio.run(main)
"""


class TestCounting:
    """Rule 122."""

    def levels(self, *times: float) -> list[int]:
        level = StopLevel()
        seen = []
        for now in times:
            opened = level.count(now)
            assert opened == (level.level != (seen[-1] if seen else 0))
            seen.append(level.level)
        return seen

    def test_signals_within_a_second_of_the_first_are_one_request(self) -> None:
        assert self.levels(100.0, 100.0, 100.5, 100.999) == [1, 1, 1, 1]

    def test_a_second_later_is_the_next_request(self) -> None:
        assert self.levels(100.0, 100.0 + SAME_REQUEST_SECONDS) == [1, 2]

    def test_the_second_request_has_its_own_second(self) -> None:
        assert self.levels(0.0, 5.0, 5.3, 5.9) == [1, 2, 2, 2]

    def test_the_third_is_out_and_the_last(self) -> None:
        assert self.levels(0.0, 5.0, 6.0, 60.0) == [1, 2, 3, 3]

    def test_signals_in_a_window_do_not_prolong_it(self) -> None:
        assert self.levels(0.0, 0.6, 1.2) == [1, 1, 2]


def test_importing_changes_nothing() -> None:
    code = """
import signal
before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)]
import sys, threading
import compat.signals
assert before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)]
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert threading.active_count() == 1
print(sorted({"trio", "asyncio", "torch", "sglang", "dynamo"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout == "[]\n"


class TestBeforeAttach:
    """Rule 128: while imports run and arguments are parsed."""

    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
    def test_first_request_ends_a_blocked_process_and_all_below(
        self, tmp_path: Path, signum: signal.Signals
    ) -> None:
        main = """
        signals.install()
        stubborn()
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            start = time.monotonic()
            script.send(signum)
            assert script.status() == 0
            assert time.monotonic() - start < 4.0  # 2 s, on a machine that does other things too
            assert script.living() == []
            assert STOP_LINE.format(int(signum)) in script.errors()

    def test_during_a_long_import(self, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text(
            "import ctypes; print('importing', flush=True); ctypes.CDLL(None).sleep(60)"
        )
        with running(tmp_path, "signals.install()\nimport slow") as script:
            assert script.line() == "importing"
            script.send(signal.SIGTERM)
            assert script.status() == 0
            assert "Traceback" not in script.errors()

    def test_sent_before_install(self, tmp_path: Path) -> None:
        # What an entry point can do before even this module is imported.
        main = """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.kill(os.getpid(), signal.SIGTERM)
        signals.install()
        block()
        """
        with running(tmp_path, main) as script:
            assert script.status() == 0
            assert STOP_LINE.format(15) in script.errors()

    def test_burst_of_both_kinds_is_one_request(self, tmp_path: Path) -> None:
        with running(tmp_path, "signals.install()\nsay('up')\nblock()") as script:
            assert script.line() == "up"
            script.send(signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
            assert script.status() == 0
            assert script.errors().count("Received signal") == 1

    def test_while_the_main_thread_holds_the_locks_of_logging(self, tmp_path: Path) -> None:
        main = """
        signals.install()
        logging.basicConfig(level=logging.INFO)
        logging.getLogger().handlers[0].acquire()
        logging._acquireLock() if hasattr(logging, "_acquireLock") else logging._lock.acquire()
        say("up")
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            script.send(signal.SIGTERM)
            assert script.status() == 0
            assert STOP_LINE.format(15) in script.errors()

    def test_while_nobody_reads_standard_error(self, tmp_path: Path) -> None:
        main = """
        signals.install()
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.set_blocking(2, False)
        try:
            while True:
                os.write(2, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(2, True)
        say("up")
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            script.send(signal.SIGUSR1, signal.SIGTERM)
            assert script.status() == 0

    def test_main_thread_that_fails_over_its_child_does_not_decide_the_status(
        self, tmp_path: Path
    ) -> None:
        main = """
        signals.install()
        say("up")
        subprocess.run(["sleep", "600"], check=True)
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            script.wait_until_living(3)  # itself, the resource tracker, sleep
            script.send(signal.SIGTERM)
            assert script.status() == 0
            assert "Traceback" not in script.errors()

    def test_attaching_too_late_does_not_return(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        say("up")
        while not stop.level:
            time.sleep(0.001)
        serve(stop)
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "up"
            script.send(signal.SIGTERM)
            assert script.status() == 0
            assert script.lines() == []

    def test_orphans_of_its_children_go_too(self, tmp_path: Path) -> None:
        main = """
        signals.install()
        subprocess.run(["sh", "-c", "sleep 600 &"], check=True)
        say("up")
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            script.wait_until_living(3)  # itself, the resource tracker, sleep
            script.send(signal.SIGTERM)
            assert script.status() == 0
            assert script.living() == []

    def test_shared_memory_is_unlinked(self, tmp_path: Path) -> None:
        main = """
        from multiprocessing.shared_memory import SharedMemory
        signals.install()
        memory = SharedMemory(create=True, size=64)
        say(memory.name)
        block()
        """
        with running(tmp_path, main) as script:
            name = Path("/dev/shm") / script.line()
            assert name.exists()
            script.send(signal.SIGTERM)
            assert script.status() == 0
            assert not name.exists()
            assert script.living() == []


class TestAttached:
    def test_levels_wake_a_sleeping_trio_and_the_third_leaves(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        child = stubborn()
        serve(stop)
        """
        with running(tmp_path, main, SERVE) as script:
            assert {script.line(), script.line()} == {"up", "attached"}
            script.send(signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
            assert script.line() == "level 1"
            time.sleep(SAME_REQUEST_SECONDS + 0.1)
            script.send(signal.SIGINT, signal.SIGTERM)
            assert script.line() == "level 2"
            time.sleep(SAME_REQUEST_SECONDS + 0.1)
            script.send(signal.SIGTERM)
            assert script.status() == 70
            assert script.lines() == []
            assert script.living() == []
            # Which of those that wait comes first is the kernel's choice.
            assert script.errors().count("starting graceful shutdown") == 1

    def test_logged_as_the_incumbent_does_once_logging_is_there(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        logging.basicConfig(level=logging.INFO, format="<%(levelname)s %(message)s>")
        serve(stop)
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "attached"
            script.send(signal.SIGINT)
            assert script.line() == "level 1"
            script.wait_for_error(f"<INFO {STOP_LINE.format(2)}>")

    def test_third_request_ends_a_blocked_loop(self, tmp_path: Path) -> None:
        module = SERVE + "\nasync def blocked():\n    block()\n"
        with running(tmp_path, "serve(signals.install(), blocked)", module) as script:
            assert script.line() == "attached"
            for request in range(3):
                time.sleep(SAME_REQUEST_SECONDS + 0.1 if request else 0)
                script.send(signal.SIGTERM)
            assert script.status() == 70
            assert script.lines() == []

    def test_after_trio_has_ended_requests_are_counted_and_harmless(self, tmp_path: Path) -> None:
        module = SERVE + "\nasync def nothing():\n    pass\n"
        main = """
        stop = signals.install()
        serve(stop, nothing, engine_failed=lambda: say("failed"), dump=lambda: say("dump"))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGQUIT)
        while not stop.level:
            time.sleep(0.001)
        say("ended", stop.level)
        while not os.path.exists("go"):
            time.sleep(0.01)
        os._exit(5)
        """
        with running(tmp_path, f"os.chdir({str(tmp_path)!r})\n" + dedent(main), module) as script:
            assert [script.line(), script.line()] == ["attached", "ended 1"]
            script.send(signal.SIGUSR1)
            script.wait_for_error("Trio has ended; stacks of all threads")
            (tmp_path / "go").touch()
            assert script.status() == 5
            assert script.lines() == []

    def test_a_failing_callback_is_logged_and_ends_nothing(self, tmp_path: Path) -> None:
        module = """
        import trio

        async def main(stop):
            told = trio.Event()

            def notify(level):
                told.set()
                raise ValueError("told badly")

            stop.attach(notify)
            os.kill(os.getpid(), signal.SIGTERM)
            await told.wait()
            await trio.lowlevel.checkpoint()
            say("alive")
        """
        with running(tmp_path, "import trio\ntrio.run(main, signals.install())", module) as script:
            assert script.line() == "alive"
            assert script.status() == 0
            assert "told badly" in script.errors()


class TestWhoeverElseWantsTheSignals:
    def test_handlers_set_later_get_nothing(self, tmp_path: Path) -> None:
        main = """
        def take(signum, frame):
            say("taken", signum)
            os._exit(1)

        stop = signals.install()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, take)
        serve(stop, engine_failed=lambda: say("engine failed"))
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "attached"
            script.send(signal.SIGQUIT)
            assert script.line() == "engine failed"
            script.send(signal.SIGINT)
            assert script.line() == "level 1"

    def test_a_thread_that_unblocked_itself_hands_the_signal_on(self, tmp_path: Path) -> None:
        main = """
        def unblocked():
            signals.clear_mask()
            time.sleep(600)

        stop = signals.install()
        thread = threading.Thread(target=unblocked, daemon=True)
        thread.start()

        async def hit_it():
            signal.pthread_kill(thread.ident, signal.SIGTERM)
            signal.pthread_kill(thread.ident, signal.SIGQUIT)
            await trio.sleep_forever()

        serve(stop, hit_it, engine_failed=lambda: say("engine failed"))
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "attached"
            assert {script.line(), script.line()} == {"level 1", "engine failed"}

    def test_a_restarted_resource_tracker_costs_no_signal(self, tmp_path: Path) -> None:
        main = """
        import warnings
        from multiprocessing import resource_tracker
        warnings.simplefilter("ignore")
        stop = signals.install()
        os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
        while resource_tracker._resource_tracker._check_alive():
            time.sleep(0.001)
        resource_tracker.ensure_running()
        say(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        serve(stop)
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "False"  # the reason why install() starts it itself
            assert script.line() == "attached"
            script.send(signal.SIGTERM)
            assert script.line() == "level 1"

    def test_installing_twice_is_installing_once(self, tmp_path: Path) -> None:
        main = "say(signals.install() is signals.install(), threading.active_count())"
        with running(tmp_path, main) as script:
            assert script.line() == "True 2"


class TestEngineFailed:
    def test_before_attach_it_is_kept(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        say("up")
        while not stop._engine_failed_early:
            time.sleep(0.001)
        serve(stop, engine_failed=lambda: say("engine failed"))
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "up"
            script.send(signal.SIGQUIT)
            assert script.line() == "attached"
            assert script.line() == "engine failed"

    def test_without_a_callback_nobody_dies(self, tmp_path: Path) -> None:
        with running(tmp_path, "serve(signals.install())", SERVE) as script:
            assert script.line() == "attached"
            script.send(signal.SIGQUIT)
            script.wait_for_error("Received SIGQUIT")
            script.send(signal.SIGTERM)
            assert script.line() == "level 1"


class TestDump:
    def test_asked_before_there_is_anybody_to_answer(self, tmp_path: Path) -> None:
        main = """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        subprocess.run(["kill", "-USR1", str(os.getpid())], check=True)
        signals.install()
        block()
        """
        with running(tmp_path, main) as script:
            script.wait_for_error("Received SIGUSR1: stacks of all threads")
            script.send(signal.SIGTERM)
            assert script.status() == 0

    def test_what_the_process_is_doing(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        stop.doing("starting: reading")
        say("up")
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            script.send(signal.SIGUSR1)
            script.wait_for_error("Received SIGUSR1 (starting: reading, for ")
            script.send(signal.SIGTERM)
            assert script.status() == 0

    def test_from_the_first_line_all_stacks(self, tmp_path: Path) -> None:
        main = """
        def somewhere():
            say("up")
            block()

        signals.install()
        somewhere()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "up"
            script.send(signal.SIGUSR1)
            script.wait_for_error("in somewhere")
            script.send(signal.SIGTERM)
            assert script.status() == 0

    def test_attached_the_callback_runs_in_trio(self, tmp_path: Path) -> None:
        main = """
        def dump():
            say("tree of", trio.lowlevel.current_root_task().name)

        serve(signals.install(), dump=dump)
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "attached"
            for _ in range(2):
                script.send(signal.SIGUSR1)
                assert script.line() == "tree of <init>"
            assert "stacks of all threads" not in script.errors()

    def test_our_own_nudge_is_not_taken_for_a_question(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        for _ in range(1000):
            stop.arm_last_resort(600.0, reason="far away")
        serve(stop)
        """
        with running(tmp_path, main, SERVE) as script:
            assert script.line() == "attached"
            # Signals are taken in turn: what the nudge led to is over by then.
            script.send(signal.SIGTERM)
            assert script.line() == "level 1"
            assert "stacks of all threads" not in script.errors()

    def test_a_blocked_loop_shows_its_stack_instead(self, tmp_path: Path) -> None:
        module = SERVE + "\nasync def stuck_here():\n    block()\n"
        main = "serve(signals.install(), stuck_here, dump=lambda: say('dump'))"
        with running(tmp_path, main, module) as script:
            assert script.line() == "attached"
            script.send(signal.SIGUSR1)
            script.wait_for_error("in stuck_here")
            assert "Trio has not answered" in script.errors()


class TestLastAct:
    """Before a forced way out, in the time that killing takes anyway."""

    def test_it_is_done(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        stop.before_leaving = lambda: say("last act")
        stop.arm_last_resort(0.1, reason="test")
        block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "last act"
            assert script.status() == 70

    @pytest.mark.parametrize("act", ["block", "lambda: 1 / 0"])
    def test_it_holds_nobody_up(self, tmp_path: Path, act: str) -> None:
        main = f"""
        stop = signals.install()
        stop.before_leaving = {act}
        stop.arm_last_resort(0.1, reason="test")
        block()
        """
        with running(tmp_path, main) as script:
            assert script.status() == 70


class TestLastResort:
    @pytest.mark.parametrize(
        "how",
        [
            pytest.param("block()", id="main thread in a C call"),
            pytest.param("while True: pass", id="main thread busy"),
            pytest.param(
                "threading.Thread(target=time.sleep, args=(600,)).start()", id="non-daemon thread"
            ),
            pytest.param("while True: stubborn().wait(0.01)", id="children come back"),
        ],
    )
    def test_ends_the_process(self, tmp_path: Path, how: str) -> None:
        main = f"""
        stop = signals.install()
        stubborn()
        stop.arm_last_resort(0.3, reason="engine shutdown took too long")
        try:
            {how}
        except subprocess.TimeoutExpired:
            block()
        """
        with running(tmp_path, main) as script:
            assert script.status() == 70
            assert "engine shutdown took too long" in script.errors()
            assert script.living() == []

    def test_counts_from_the_request_that_a_blocked_loop_never_hears(self, tmp_path: Path) -> None:
        module = SERVE + "\nasync def blocked():\n    block()\n"
        main = "serve(signals.install(), blocked, last_resort=0.2)"
        with running(tmp_path, main, module) as script:
            assert script.line() == "attached"
            script.send(signal.SIGTERM)
            assert script.status() == 70
            assert script.lines() == []
            assert "Last resort: asked to stop" in script.errors()

    def test_a_main_thread_that_keeps_the_interpreter_for_itself(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        stop.arm_last_resort(0.1, reason="never said")
        ctypes.PyDLL(None).sleep(60)
        """
        with running(tmp_path, main) as script:
            assert script.status() == 1
            assert "most recent call first" in script.errors()

    def test_disarmed_or_replaced_it_does_not_fire(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        stop.arm_last_resort(0.2, reason="disarmed")
        stop.disarm()
        stop.arm_last_resort(0.2, reason="replaced")
        stop.arm_last_resort(600.0, reason="far away")
        time.sleep(0.6)
        say("alive")
        """
        with running(tmp_path, main) as script:
            assert script.line() == "alive"
            assert script.status() == 0

    def test_ends_the_process_even_if_its_children_cannot_be_seen(self, tmp_path: Path) -> None:
        main = """
        def blind(**kwargs):
            raise RuntimeError("no /proc here")

        stop = signals.install()
        signals.kill_descendants = blind
        stop.leave(0, "leaving")
        """
        with running(tmp_path, main) as script:
            assert script.status() == 70
            assert "no /proc here" in script.errors()
            assert "leaving" in script.errors()

    def test_leaving_by_hand_keeps_the_status_of_the_first(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        stubborn()
        threading.Thread(target=stop.leave, args=(3, "leaving by hand"), daemon=True).start()
        while stop._leaving is None:
            time.sleep(0.001)
        sys.exit(4)
        """
        with running(tmp_path, main) as script:
            assert script.status() == 3
            assert "leaving by hand" in script.errors()
            assert script.living() == []


class TestChildren:
    def test_spawned_children_outlive_a_signal_to_the_group(self, tmp_path: Path) -> None:
        module = (
            SERVE
            + """
def child():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    say("child", signal.SIGTERM in blocked, signal.SIGINT in blocked)
    time.sleep(600)
"""
        )
        main = """
        stop = signals.install()
        multiprocessing.get_context("spawn").Process(target=child).start()
        serve(stop)
        """
        with running(tmp_path, main, module) as script:
            assert {script.line(), script.line()} == {"attached", "child True True"}
            before = len(script.living())
            os.killpg(script.process.pid, signal.SIGTERM)
            os.killpg(script.process.pid, signal.SIGINT)
            assert script.line() == "level 1"
            assert len(script.living()) == before == 3  # itself, the tracker, the child

    def test_a_child_can_be_given_its_signals(self, tmp_path: Path) -> None:
        main = """
        signals.install()
        ours = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
        with signals.unblocked_signals():
            freed = subprocess.Popen(["sleep", "600"])
        assert ours <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
        by_preexec = subprocess.Popen(["sleep", "600"], preexec_fn=signals.clear_mask)
        left = subprocess.Popen(["sleep", "600"])
        for child in (freed, by_preexec, left):
            child.terminate()
        say(freed.wait(), by_preexec.wait())
        time.sleep(0.2)
        say(left.poll())
        """
        with running(tmp_path, main) as script:
            assert script.line() == "-15 -15"
            assert script.line() == "None"

    def test_a_child_that_installs_itself_needs_no_help(self, tmp_path: Path) -> None:
        main = """
        stop = signals.install()
        if len(sys.argv) == 1:
            child = subprocess.Popen([sys.executable, __file__, "child"])
            say(child.wait())
        else:
            os.kill(os.getpid(), signal.SIGTERM)
            block()
        """
        with running(tmp_path, main) as script:
            assert script.line() == "0"

    def test_a_forked_child_has_default_actions_again(self, tmp_path: Path) -> None:
        main = """
        signals.install()
        pid = os.fork()
        if pid == 0:
            signals.clear_mask()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
        with running(tmp_path, main) as script:
            assert script.line() == "-15"
