# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m tests.simulation --seeds N``: any number of seeds, on all cores."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from . import run
from .coverage import SITUATIONS
from .draw import SEEDS_PER_ENGINE_BUILD

SAY_EVERY_S = 10.0
TIMELINES_SHOWN = 3
"""Of so many failing seeds the whole timeline is printed."""


def main() -> int:
    arguments = _parse()
    if arguments.replay:
        return _replay(arguments.replay)
    progress = _Progress(arguments.seeds)
    # Forked after the imports, which take longer than thousands of seeds.
    with ProcessPoolExecutor(
        arguments.jobs, multiprocessing.get_context("fork"), initializer=run.warm_up
    ) as pool:
        for chunk, batch in _results(pool, _chunks(arguments.start, arguments.seeds)):
            progress.add(len(chunk), batch)
    progress.tell_covered()
    progress.say()
    print(f"{progress.done} seeds, {progress.violations} violations")
    return 1 if progress.violations or progress.done != arguments.seeds else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--replay", type=int, nargs="+", metavar="SEED", help="print the timelines of these seeds"
    )
    return parser.parse_args()


def _replay(seeds: list[int]) -> int:
    run.warm_up()
    failed = False
    for seed in seeds:
        text = run.report(seed)
        print(text)
        failed = failed or "\nVIOLATED" in text
    return int(failed)


def _chunks(start: int, count: int) -> Iterator[range]:
    """Seeds that share SGLang's arguments go to one process together."""
    end = start + count
    while start < end:
        stop = min(end, (start // SEEDS_PER_ENGINE_BUILD + 1) * SEEDS_PER_ENGINE_BUILD)
        yield range(start, stop)
        start = stop


def _results(
    pool: ProcessPoolExecutor, chunks: Iterator[range]
) -> Iterator[tuple[range, run.Batch]]:
    """As they come; few are handed out at a time, so that an interrupt ends the run soon."""
    running: dict[Future[run.Batch], range] = {}
    while True:
        while len(running) < 8 and (chunk := next(chunks, None)) is not None:
            running[pool.submit(run.batch, chunk)] = chunk
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


class _Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._began = self._said = time.monotonic()
        self._shown = 0
        self.done = 0
        self.violations = 0
        self._covered: Counter[str] = Counter()

    def add(self, seeds: int, batch: run.Batch) -> None:
        self.done += seeds
        self._covered += batch.covered
        for seed, texts in sorted(batch.failures.items()):
            self.violations += len(texts)
            self._show(seed, texts)
        if time.monotonic() - self._said >= SAY_EVERY_S:
            self.say()

    def _show(self, seed: int, texts: list[str]) -> None:
        self._shown += 1
        if self._shown <= TIMELINES_SHOWN:
            try:
                print(run.report(seed))
            except Exception as error:
                print(f"seed {seed} can't be told: {error!r}")
        for text in texts:
            print(f"seed {seed}: {text}")
        sys.stdout.flush()

    def tell_covered(self) -> None:
        print("runs that came into a situation:")
        for name in sorted(SITUATIONS, key=lambda name: self._covered[name]):
            print(f"{self._covered[name]:8}  {name}")

    def say(self) -> None:
        self._said = time.monotonic()
        seconds = max(1e-9, self._said - self._began)
        print(
            f"{seconds:6.0f} s: {self.done} of {self._total} seeds, "
            f"{self.done / seconds:.0f} a second, {self.violations} violations",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
