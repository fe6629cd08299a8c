# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Starts one worker variant with the stand-in scheduler, and counts what a bench can't see outside.

`python tests/bench/launch.py VARIANT COUNTS_FILE WORKER_ARGS…`, run as a file so that spawned
children import it by path. Counts (full collections and their pauses) go to COUNTS_FILE.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT_VARIABLE = "TRIO_WORKER_BENCH_SCRIPT"
SCRIPT = os.environ.get(SCRIPT_VARIABLE, "")

VARIANTS = ("incumbent", "incumbent-reader", "incumbent-push", "ours-no-tap", "ours")


class Counts:
    """Full collections since the start, written twice a second by a thread of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = 0.0
        self._full = 0
        self._pause = 0.0
        self._longest = 0.0
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._write, daemon=True).start()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
            return
        pause = time.perf_counter() - self._began
        self._full += 1
        self._pause += pause
        self._longest = max(self._longest, pause)

    def _write(self) -> None:
        while True:
            counts = {"full": self._full, "pause_s": self._pause, "longest_s": self._longest}
            scratch = self._file.with_suffix(".new")
            scratch.write_text(json.dumps(counts))
            scratch.rename(self._file)
            time.sleep(0.5)


def run_incumbent(variant: str, args: list[str]) -> None:
    """``python -m dynamo.sglang`` with our stand-in, perhaps with one of its two pull requests."""
    import dynamo.sglang.main as incumbent
    from dynamo.sglang.request_handlers.cancellation import CancellationMixin
    from dynamo.sglang.request_handlers.llm.decode_handler import DecodeWorkerHandler

    from trio_worker.standin import parse_script
    from trio_worker.standin.install import install

    incumbent.install_scheduler_process_wrapper = lambda: install(parse_script(SCRIPT))
    if variant == "incumbent-reader":
        from tests.bench.incumbent_reader import method

        CancellationMixin._stream_until_cancelled = method
    if variant == "incumbent-push":
        from tests.bench.incumbent_push import push_egress_capable

        DecodeWorkerHandler.generate = push_egress_capable(DecodeWorkerHandler.generate)
    sys.argv = ["dynamo.sglang", *args]
    incumbent.main()


def run_ours(variant: str, args: list[str]) -> None:
    """``python -m trio_worker``."""
    from trio_worker.__main__ import main

    more = ["--stand-in-scheduler", SCRIPT, *(["--no-tap"] if variant == "ours-no-tap" else [])]
    sys.argv = ["trio_worker", *more, *args]
    main()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    chosen, counts_file, *worker_args = sys.argv[1:]
    if chosen.startswith("ours"):
        # First, as in trio_worker.__main__: before there is another thread.
        from compat.signals import install as install_signals

        install_signals()
    counting = Counts(Path(counts_file))
    (run_ours if chosen.startswith("ours") else run_incumbent)(chosen, worker_args)
