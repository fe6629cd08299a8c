# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Writes the figures of `docs/performance.md` from a run of the bench.

Without options it takes ``build/bench`` over into ``docs/performance`` (results without their
rows, and the plots) and writes the page's tables from them. ``--check`` writes nothing and fails
where page and results differ. Imports nothing of the project.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / "docs" / "performance"
BUILD = ROOT / "build" / "bench"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"

TARGETS = {
    "handover_vs_bare": ("hand-over of a chunk, as a multiple of a bare `async for`", "≤ 0.3"),
    "loop_callback_vs_asyncio": ("`call_soon`, ours ÷ asyncio's", "≤ 1.5"),
    "cpu_per_chunk_vs_incumbent_128": ("main-thread CPU per chunk, 128 streams", "≤ 0.20"),
    "chunks_per_s_vs_incumbent_saturated": ("chunks delivered per second, 512 streams", "≥ 10"),
    "p99_gap_vs_incumbent_128": ("p99 gap between chunks, 128 streams", "≤ 0.3"),
    "p99_gap_vs_incumbent_512": ("p99 gap between chunks, 512 streams", "≤ 0.05"),
    "tasks_per_chunk": ("tasks created per chunk", "0"),
    "full_collections_live": ("full collections while streams are live", "0"),
}
COLUMNS = (
    ("main_us_per_chunk", "main thread, µs a chunk", ".1f"),
    ("chunks_per_s", "chunks/s", ",.0f"),
    ("tokens_per_s", "tokens/s", ",.0f"),
    ("gap_p50_ms", "median gap, ms", ".1f"),
    ("gap_p99_ms", "p99 gap, ms", ".1f"),
    ("first_p50_ms", "first token, ms", ".0f"),
    ("full_collections", "full collections", ".0f"),
)
TITLES = {
    "default": "No further flags",
    "metrics": "`--enable-metrics`",
    "skip-tokenizer-init": "`--skip-tokenizer-init`",
}
SHARES = (
    ("main_share", "worker, main thread"),
    ("process_share", "worker, all threads"),
    ("frontend_share", "frontend"),
    ("detokenizer_share", "detokenizer"),
    ("scheduler_share", "stand-in scheduler"),
)


def render(results: dict[str, Any]) -> str:
    """The page's figures; pure."""
    machine = results["machine"]
    parts = [
        f"One run of {machine['minutes']:.0f} minutes on {machine['cores']} cores, Python "
        f"{machine['python']}; medians of interleaved repetitions.",
        _targets(results["summary"]),
        *(_mode(results["serving"], mode) for mode in _modes(results["serving"])),
        _shares(results["serving"]),
    ]
    if results["slow_client"]:
        parts.append(_slow_client(results["slow_client"]))
    if results["looking"]:
        parts.append(_looking(results["looking"], results["recorder"]))
    return "\n".join(f"{part}\n" for part in parts)


def _table(head: Sequence[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _targets(summary: dict[str, float]) -> str:
    rows = [
        [what, f"{summary[name]:.3g}", target, f"`{name}`"]
        for name, (what, target) in TARGETS.items()
    ]
    return _table(["ours ÷ incumbent, unless it says otherwise", "", "target", "in the file"], rows)


def _modes(serving: dict[str, Any]) -> list[str]:
    return sorted({key.split("/")[0] for key in serving})


def _rows(serving: dict[str, Any], mode: str) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for key, figures in serving.items():
        its_mode, streams, variant = key.split("/")
        if its_mode == mode:
            found.append((int(streams), variant, figures))
    return sorted(found, key=lambda row: row[:2])


def _mode(serving: dict[str, Any], mode: str) -> str:
    rows = [
        [
            str(streams),
            variant,
            *(format(figures[name]["median"], form) for name, _, form in COLUMNS),
        ]
        for streams, variant, figures in _rows(serving, mode)
    ]
    head = ["streams", "worker", *(title for _, title, _ in COLUMNS)]
    return f"### {TITLES[mode]}\n\n{_table(head, rows)}"


def _shares(serving: dict[str, Any]) -> str:
    rows = [
        [
            str(streams),
            variant,
            *(format(figures[name]["median"], ".2f") for name, _ in SHARES),
            format(figures["machine_cores_busy"]["median"], ".2f"),
        ]
        for streams, variant, figures in _rows(serving, "default")
        if variant in ("incumbent", "ours")
    ]
    head = ["streams", "worker", *(title for _, title in SHARES), "whole machine"]
    return f"### Who uses the cores\n\nCores, by process.\n\n{_table(head, rows)}"


def _slow_client(slow: dict[str, Any]) -> str:
    rows = [
        [
            variant,
            format(found["p99_ms_without"], ".1f"),
            format(found["p99_ms_with"], ".1f"),
            format(found["p99_ratio"], ".2f"),
            format(found["memory_growth_mb"], ".0f"),
            "yes" if found["answers_whole"] else "no",
        ]
        for variant, found in slow.items()
    ]
    head = [
        "worker",
        "p99 gap of the 64 without it, ms",
        "with it, ms",
        "ratio (≤ 1.2)",
        "worker's growth, MB",
        "its answer whole",
    ]
    return f"### Beside a client that stops reading for 30 s\n\n{_table(head, rows)}"


def _looking(looks: dict[str, float], recorder: dict[str, float]) -> str:
    return (
        "### Looked into\n\n"
        f"With {looks['requests_shown']:.0f} requests in flight and a look at the live tree each"
        f" second, the tree came after {looks['look_ms_median']:.0f} ms in the median and"
        f" {looks['look_ms_max']:.0f} ms at most; the p99 gap was {looks['p99_ms_with']:.1f} ms"
        f" with the looks and {looks['p99_ms_without']:.1f} ms without"
        f" ({looks['p99_ratio']:.2f}). The flight recorder takes {recorder['us_a_request']:.1f} µs"
        f" of the main thread for all {recorder['events_a_request']:.0f} events of an aborted"
        f" request, which is {recorder['share']:.2%} of what its 1,024 tokens cost there."
    )


def with_figures(page: str, figures: str) -> str:
    """The page with its figures replaced; pure."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def take_over() -> None:
    """The last run's results and plots become the page's."""
    results = json.loads((BUILD / "results.json").read_text())
    del results["rows"]
    for variant in results["slow_client"].values():
        variant.pop("rows", None)
    (KEPT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for plot in KEPT.glob("*.png"):
        shutil.copy(BUILD / plot.name, plot)


def main(arguments: Sequence[str]) -> int:
    """0: page and results agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if not options.check:
        take_over()
    results = json.loads((KEPT / "results.json").read_text())
    page = PAGE.read_text()
    wanted = with_figures(page, render(results))
    if options.check:
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
