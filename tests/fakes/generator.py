# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A ``DiffGenerator`` whose generations end when a test says so, in the thread that runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

BOUND_S = 20.0
"""Real seconds after which a generation that a test has forgotten fails."""


class FakeGenerator:
    """Counts who is inside. With ``held``, each generation waits for `release`."""

    def __init__(self, *, held: bool = False, pids: tuple[int, ...] = ()) -> None:
        self.local_scheduler_process = [SimpleNamespace(pid=pid) for pid in pids]
        self.arguments: list[dict[str, Any]] = []
        self.inside = 0
        self.most_inside = 0
        self.threads: set[int] = set()
        self.shutdowns = 0
        self.result: Callable[[dict[str, Any]], Any] = lambda _arguments: SimpleNamespace(
            frames=[b"png"]
        )
        self.on_begin: Callable[[], None] = lambda: None
        """Called in the generation's thread."""
        self._held = held
        self._turnstile = threading.Semaphore(0)
        self._lock = threading.Lock()

    def generate(self, sampling_params_kwargs: dict[str, Any]) -> Any:
        with self._lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.threads.add(threading.get_ident())
            self.arguments.append(sampling_params_kwargs)
        self.on_begin()
        try:
            if self._held and not self._turnstile.acquire(timeout=BOUND_S):
                raise AssertionError("nobody released this generation")
            return self.result(sampling_params_kwargs)
        finally:
            with self._lock:
                self.inside -= 1

    def release(self, generations: int = 1) -> None:
        """Any thread. So many generations may end."""
        self._turnstile.release(generations)

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.local_scheduler_process = []
