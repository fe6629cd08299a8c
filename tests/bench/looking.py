# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What it costs to look inside a worker with 500 requests in flight, and how soon it answers.

Its tokens come slowly enough for the machine to keep up: what is measured is the look, not the
queue behind 500 full-speed streams.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import trio

from tests.bench.serving import Load, Variant, open_variant
from trio_worker.inside import ROUTE
from trio_worker.quickstart.chat import post

STREAMS = 500
SCRIPT = "step_ms=100"
LOAD = Load(streams=STREAMS, max_tokens=512, window=10.0)
EVERY_S = 1.0
"""Seconds between looks, as `trio-worker top` has them."""


async def look_during(variant: Variant) -> tuple[dict[str, Any], list[float], int]:
    """Trio. The load's figures, what each look took (ms), and the most requests that one showed."""
    took: list[float] = []
    most = 0

    async def look_again_and_again() -> None:
        nonlocal most
        await trio.sleep(LOAD.ramp + LOAD.settle)
        while True:
            began = trio.current_time()
            answer = await post(variant.system_port, f"/engine/{ROUTE}", {})
            took.append((trio.current_time() - began) * 1000)
            most = max(most, answer.body["counts"]["live"])
            await trio.sleep(EVERY_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_again_and_again)
        row = await variant.measure(LOAD)
        nursery.cancel_scope.cancel()
    return row, took, most


async def measure(variant: Variant, rounds: int, say: Callable[[str], object]) -> dict[str, Any]:
    """Trio. Rounds with and without looks, taking turns; gaps and times in ms."""
    without: list[float] = []
    looked: list[float] = []
    took: list[float] = []
    most = 0
    for number in range(rounds):
        for look in (False, True) if number % 2 == 0 else (True, False):
            if look:
                row, times, seen = await look_during(variant)
                looked.append(row["gap_p99_ms"])
                took += times
                most = max(most, seen)
            else:
                row = await variant.measure(LOAD)
                without.append(row["gap_p99_ms"])
            say(
                f"{STREAMS} streams {'looked into' if look else 'left alone'}: "
                f"p99 gap {row['gap_p99_ms']:.1f} ms"
            )
            await variant.rest()
    return {
        "requests_shown": most,
        "look_ms_median": statistics.median(took),
        "look_ms_max": max(took),
        "p99_ms_without": statistics.median(without),
        "p99_ms_with": statistics.median(looked),
        "p99_ratio": statistics.median(looked) / statistics.median(without),
    }


def main() -> None:
    """``python -m tests.bench.looking``."""
    from tests.bench.__main__ import BUILD, Progress

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    async def run() -> dict[str, Any]:
        async with open_variant("ours", "default", BUILD / "work", script=SCRIPT) as variant:
            await variant.ready()
            return await measure(variant, options.rounds, Progress())

    print(json.dumps(trio.run(run), indent=2))


if __name__ == "__main__":
    main()
