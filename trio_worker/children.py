# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The processes of a gateway that serve: started, looked after, told to leave, seen to the end."""

from __future__ import annotations

import logging
import math
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from compat.processes import wait_process_exit
from compat.signals import SAME_REQUEST_SECONDS

logger = logging.getLogger(__name__)

REAP_S: Final = 2.0
"""Seconds in which a killed child is gone."""

HURRY_AFTER_S: Final = SAME_REQUEST_SECONDS + 0.1
"""From the first signal to a child to the second: any earlier, it is the same request to it."""


class Child:
    """One process, and how it ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.exited = trio.Event()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status once it has been reaped; negative: the signal that killed it."""
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Any flavour. Send a signal, unless the child is gone."""
        if not self.exited.is_set():
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def reap(self) -> None:
        """Trio. Take its status, if it has ended."""
        if self._process.poll() is not None:
            self.exited.set()


class Children:
    """All of them. Lives on the Trio thread, the main one; `trio_worker.shutdown.Children`."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._told_at = -math.inf

    @property
    def pids(self) -> list[int]:
        """Of all that were started."""
        return [child.pid for child in self._children]

    @property
    def failures(self) -> int:
        """Children that exited with a status other than 0."""
        return sum(bool(child.status) for child in self._children)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Trio. Start one, from this thread: a child dies with the thread that started it.

        Our signals stay blocked in it until its first line takes them over, so that one which
        comes before that is kept. Raises ``OSError``.
        """
        child = Child(subprocess.Popen(list(command), env=dict(environment)))
        self._children.append(child)
        return child

    async def look_after(self, child: Child) -> int | None:
        """Trio. Until `child` has exited: its status. Cancelled, it kills and reaps it first."""
        try:
            await wait_process_exit(child.pid)
        finally:
            child.reap()
            if not child.exited.is_set():
                child.signal(signal.SIGKILL)
                with trio.CancelScope(shield=True), trio.move_on_after(REAP_S):
                    await wait_process_exit(child.pid)
                child.reap()
        return child.status

    # ---- the way out ----

    def ask_to_stop(self) -> None:
        """Trio. SIGTERM to all; who has it from elsewhere within a second takes it for the same."""
        self._tell(signal.SIGTERM)

    def tell_engine_dead(self) -> None:
        """Trio. SIGQUIT to all, as SGLang's own processes tell it."""
        self._tell(signal.SIGQUIT)

    def _tell(self, number: signal.Signals) -> None:
        self._told_at = trio.current_time()
        for child in self._children:
            child.signal(number)

    async def hurry(self) -> None:
        """Trio. SIGTERM to all, once that is a second request to them."""
        await trio.sleep_until(self._told_at + HURRY_AFTER_S)
        self._tell(signal.SIGTERM)

    async def wait_exited(self) -> None:
        """Trio. Until each has exited and been reaped."""
        for child in self._children:
            await child.exited.wait()

    def kill(self) -> list[int]:
        """Trio. SIGKILL to those that are left; their pids. `look_after` reaps them."""
        left = [child for child in self._children if not child.exited.is_set()]
        for child in left:
            child.signal(signal.SIGKILL)
        return [child.pid for child in left]
