# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make bench`` and ``make bench-quick``: everything side by side, in one run, taking turns.

Writes ``build/bench/results.json`` and ``build/bench/report.html`` with its plots. Every figure is
a median of interleaved repetitions; the spread stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from tests.bench import (
    handover_micro,
    looking,
    loop_micro,
    recorder_micro,
    report,
    slow_client,
)
from tests.bench.launch import VARIANTS
from tests.bench.serving import MODES, Load, Variant, open_variant

BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"
STREAMS = (1, 16, 64, 128, 256, 512)
SATURATED = 512
FEWER_STREAMS = (128, 512)
SCALING_STREAMS = (1024,)
COMPARED = ("incumbent", "ours")
SLOW_CLIENT_ROUNDS = 2
LOOK_ROUNDS = 3


class Progress:
    """Lines with the time since the start, on stderr."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, line: str) -> None:
        minutes, seconds = divmod(time.monotonic() - self._began, 60)
        print(f"[{minutes:3.0f}:{seconds:04.1f}] {line}", file=sys.stderr, flush=True)


async def serve_and_load(
    variants: tuple[str, ...],
    mode: str,
    streams: tuple[int, ...],
    repetitions: int,
    load: Load,
    say: Progress,
) -> list[dict[str, Any]]:
    """Trio. All variants up at once, loaded one at a time, taking turns at each load.

    `load` says all but how many streams.
    """
    rows: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        up: list[Variant] = []
        for name in variants:
            say(f"{mode}: starting {name}")
            up.append(await stack.enter_async_context(open_variant(name, mode, BUILD / "work")))
        # Together: what a start costs is imports, on one core.
        for variant in up:
            await variant.ready()
            say(f"{mode}: {variant.name} serves")
        for count in streams:
            for repetition in range(repetitions):
                # Who goes first alternates, so that nobody always follows the same neighbour.
                order = up if repetition % 2 == 0 else up[::-1]
                # Few streams are up at once.
                this = replace(load, streams=count, ramp=min(load.ramp, 0.1 + 0.02 * count))
                for variant in order:
                    row = await variant.measure(this)
                    row |= {"variant": variant.name, "mode": mode, "repetition": repetition}
                    rows.append(row)
                    say(
                        f"{mode}, {count} streams, {variant.name}: "
                        f"{row['chunks_per_s']:.0f} chunks/s, "
                        f"{row['tokens_per_chunk']:.2f} tokens a chunk, "
                        f"main {row['main_us_per_chunk']:.1f} µs a chunk, "
                        f"p99 gap {row['gap_p99_ms']:.1f} ms, {row['errors']} errors"
                    )
                    await variant.rest()
    return rows


async def stall(say: Progress) -> dict[str, Any]:
    """Trio. A client that stops reading, beside ours and beside the incumbent."""
    found: dict[str, Any] = {}
    for name in COMPARED:
        async with open_variant(name, "default", BUILD / "work") as variant:
            await variant.ready()
            found[name] = await slow_client.measure(variant, SLOW_CLIENT_ROUNDS, say)
            if name == "ours":
                found[name]["seconds_to_leave"] = await slow_client.leave_while_stuck(variant)
    return found


async def look_inside(say: Progress) -> dict[str, Any]:
    """Trio. Our worker looked into with 500 requests in flight."""
    async with open_variant("ours", "default", BUILD / "work", script=looking.SCRIPT) as variant:
        await variant.ready()
        return await looking.measure(variant, LOOK_ROUNDS, say)


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """``mode/streams/variant`` → figure → median, least, most."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        key = f"{row['mode']}/{row['streams']}/{row['variant']}"
        groups.setdefault(key, []).append(row)
    return {
        key: {
            figure: {
                "median": statistics.median(row[figure] for row in group),
                "least": min(row[figure] for row in group),
                "most": max(row[figure] for row in group),
            }
            for figure, value in group[0].items()
            if isinstance(value, int | float)
        }
        for key, group in groups.items()
    }


def ratio(table: dict[str, Any], streams: int, figure: str) -> float:
    """Ours divided by the incumbent's, medians of one run."""
    ours = table[f"default/{streams}/ours"][figure]["median"]
    theirs = table[f"default/{streams}/incumbent"][figure]["median"]
    return float(ours / theirs)


def summary(
    table: dict[str, Any], loop: dict[str, Any], handover: dict[str, Any]
) -> dict[str, float]:
    """The figures that the targets of the design are about (ratios ours ÷ incumbent)."""
    return {
        "handover_vs_bare": handover["summary"]["handover_vs_bare"],
        "loop_callback_vs_asyncio": loop["summary"]["loop_callback_vs_asyncio"],
        "cpu_per_chunk_vs_incumbent_128": ratio(table, 128, "main_us_per_chunk"),
        "chunks_per_s_vs_incumbent_saturated": ratio(table, SATURATED, "chunks_per_s"),
        "p99_gap_vs_incumbent_128": ratio(table, 128, "gap_p99_ms"),
        "p99_gap_vs_incumbent_512": ratio(table, 512, "gap_p99_ms"),
        "tasks_per_chunk": handover["summary"]["tasks_per_chunk"],
        "full_collections_live": sum(
            table[key]["full_collections"]["most"] for key in table if key.endswith("/ours")
        ),
    }


def recorder_share(recorder: dict[str, float], table: dict[str, Any]) -> float:
    """What the recorder takes of the main thread's time for one request; pure."""
    figures = table["default/128/ours"]
    chunks = Load(streams=0).max_tokens / figures["tokens_per_chunk"]["median"]
    return float(recorder["us_a_request"] / (chunks * figures["main_us_per_chunk"]["median"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under five minutes")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES))
    parser.add_argument("--streams", nargs="+", type=int, default=STREAMS)
    parser.add_argument("--window", type=float, default=5.0, help="seconds of each measurement")
    options = parser.parse_args()
    say = Progress()
    BUILD.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    micro_rounds = 3 if options.quick else options.repetitions
    handover = handover_micro.measure(micro_rounds, progress=say)
    loop = loop_micro.measure(micro_rounds, 0.3 if options.quick else 1.0, progress=say)
    recorder = recorder_micro.measure(micro_rounds)
    slow: dict[str, Any] = {}
    looks: dict[str, Any] = {}
    load = Load(streams=0, ramp=2.0, settle=1.0, window=options.window)
    if options.quick:
        rows = trio.run(serve_and_load, COMPARED, "default", FEWER_STREAMS, 3, load, say)
    else:
        rows = []
        for mode in options.modes:
            # What a mode adds is seen at two loads, between those who are compared.
            every = mode == "default"
            variants = tuple(options.variants) if every else COMPARED
            streams = tuple(options.streams) if every else FEWER_STREAMS
            rows += trio.run(
                serve_and_load, variants, mode, streams, options.repetitions, load, say
            )
        scaling = (COMPARED, "default", SCALING_STREAMS, options.repetitions, load, say)
        rows += trio.run(serve_and_load, *scaling)
        slow = trio.run(stall, say)
        looks = trio.run(look_inside, say)
    table = medians(rows)
    results = {
        "summary": summary(table, loop, handover),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "minutes": (time.monotonic() - began) / 60,
            "load_average_at_end": os.getloadavg()[0],
        },
        "handover": handover,
        "loop": loop,
        "serving": table,
        "slow_client": slow,
        "looking": looks,
        "recorder": recorder | {"share": recorder_share(recorder, table)},
        "rows": rows,
    }
    (BUILD / "results.json").write_text(json.dumps(results, indent=1))
    report.write(results, BUILD)
    say(f"wrote {BUILD / 'results.json'} and report.html")
    print(json.dumps(results["summary"], indent=2))


if __name__ == "__main__":
    main()
