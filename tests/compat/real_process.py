# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Short scripts as real processes, every descendant of which can be found again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import compat

ROOT = Path(compat.__file__).parent.parent
MARK = "TRIO_WORKER_TEST_MARK"
PATIENCE = 30.0

HEADER = """\
import ctypes, faulthandler, logging, multiprocessing, os, signal, subprocess, sys, threading, time
from compat import processes, signals

def say(*words):
    print(*words, flush=True)

def block():
    # A C call that no handler interrupts: the interpreter gets control back when it is over.
    while True:
        ctypes.CDLL(None).sleep(60)

def stubborn():
    return subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
'''])
"""


def carriers(mark: str) -> list[int]:
    """Living processes that have `mark` in their environment; a zombie has none left."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
    return found


class Script:
    """A running script: `say()` lines come through `line()`, standard error through `errors()`."""

    def __init__(
        self, folder: Path, main: str, module: str = "", command: tuple[str, ...] = ()
    ) -> None:
        path = folder / "script.py"
        path.write_text(
            HEADER
            + textwrap.dedent(module)
            + "\nif __name__ == '__main__':\n"
            + textwrap.indent(textwrap.dedent(main), "    ")
        )
        self._mark = uuid.uuid4().hex
        self._errors = folder / "stderr"
        self._said = b""
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, sys.executable, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=os.environ | {"PYTHONPATH": str(ROOT), MARK: self._mark},
                start_new_session=True,
            )

    def line(self) -> str:
        """The next line that the script says; empty at its end."""
        while b"\n" not in self._said and self._hear():
            pass
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def lines(self) -> list[str]:
        """All further lines, to the end of the script and of whoever else writes for it."""
        while self._hear():
            pass
        said, self._said = self._said, b""
        return said.decode().splitlines()

    def _hear(self) -> bool:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready, f"nothing said for {PATIENCE} s; before: {self._said!r}; {self.errors()}"
        heard = os.read(self.process.stdout.fileno(), 65536)
        self._said += heard
        return heard != b""

    def send(self, *signums: signal.Signals) -> None:
        for signum in signums:
            self.process.send_signal(signum)

    def status(self) -> int:
        """Wait for the script's end: its exit status."""
        return self.process.wait(PATIENCE)

    def errors(self) -> str:
        return self._errors.read_text()

    def living(self) -> list[int]:
        return carriers(self._mark)

    def wait_until_living(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(living := self.living()) != count:
            assert time.monotonic() < deadline, living
            time.sleep(0.02)

    def wait_for_error(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.errors():
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.02)

    def close(self) -> None:
        while living := self.living():
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(
    folder: Path, main: str, module: str = "", command: tuple[str, ...] = ()
) -> Iterator[Script]:
    script = Script(folder, main, module, command)
    try:
        yield script
    finally:
        script.close()
