# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The bench's results as one page with plots (PNG beside it)."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

PLOTS = (
    ("main_us_per_chunk", "Worker main-thread CPU per delivered chunk (µs)", "log"),
    ("gap_p99_ms", "99th percentile of the gap between chunks (ms)", "log"),
    ("chunks_per_s", "Chunks delivered per second", "linear"),
    ("tokens_per_s", "Tokens delivered per second", "linear"),
    ("first_p50_ms", "Median time to the first token (ms)", "log"),
)
COLUMNS = (
    "tokens_per_s",
    "chunks_per_s",
    "tokens_per_chunk",
    "main_us_per_chunk",
    "main_us_per_token",
    "process_us_per_token",
    "gap_p50_ms",
    "gap_p99_ms",
    "gap_max_ms",
    "first_p50_ms",
    "full_collections",
    "full_pause_s",
    "resident_mb",
    "switches_per_chunk",
    "main_share",
    "process_share",
    "frontend_share",
    "scheduler_share",
    "detokenizer_share",
    "machine_cores_busy",
    "errors",
)


def write(results: dict[str, Any], folder: Path) -> None:
    """``report.html`` and the plots, from `results` as ``results.json`` has them."""
    table = results["serving"]
    modes = sorted({key.split("/")[0] for key in table})
    pictures = [
        _plot(table, mode, figure, title, scale, folder)
        for mode in modes
        for figure, title, scale in PLOTS
    ]
    pictures.append(_bars(results["handover"]["microseconds"], folder))
    images = "\n".join(f'<img src="{name}" alt="{name}">' for name in pictures)
    page = f"""<!doctype html>
<meta charset="utf-8">
<title>trio-worker bench</title>
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; font-size: 12px }}
td, th {{ border: 1px solid #ccc; padding: 2px 6px; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}
img {{ max-width: 100% }}
</style>
<h1>trio-worker bench</h1>
<p>Medians of interleaved repetitions in one run; least and most behind them. The scheduler is the
GPU-free stand-in, the frontend is real, all on one machine with {results["machine"]["cores"]}
cores.</p>
<h2>Summary (ours ÷ incumbent)</h2>
{_pairs(results["summary"])}
{_slow_client(results["slow_client"])}
<h2>Looked into with 500 requests in flight</h2>
{_pairs(results["looking"])}
<h2>The flight recorder</h2>
{_pairs(results["recorder"])}
<h2>Plots</h2>
{images}
<h2>All figures</h2>
{_table(table)}
"""
    (folder / "report.html").write_text(page)


def _pairs(figures: dict[str, float]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{value:.4g}</td></tr>"
        for name, value in figures.items()
    )
    return f"<table>{rows}</table>"


def _slow_client(slow: dict[str, Any]) -> str:
    """One client that stops reading for 30 s beside 64 others."""
    if not slow:
        return ""
    names = ("p99_ms_without", "p99_ms_with", "p99_ratio", "memory_growth_mb", "answers_whole")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{variant}</td>" + "".join(f"<td>{found[name]}</td>" for name in names) + "</tr>"
        for variant, found in slow.items()
    )
    return (
        f"<h2>Beside a client that stops reading</h2><table><tr><th></th>{head}</tr>{rows}</table>"
    )


def _table(table: dict[str, Any]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    rows = []
    for key in sorted(table, key=_order):
        cells = "".join(
            "<td>{median:.4g}<br><small>{least:.4g} to {most:.4g}</small></td>".format(
                **table[key][column]
            )
            for column in COLUMNS
        )
        rows.append(f"<tr><td>{html.escape(key)}</td>{cells}</tr>")
    return f"<table><tr><th>mode/streams/variant</th>{head}</tr>{''.join(rows)}</table>"


def _order(key: str) -> tuple[str, int, str]:
    mode, streams, variant = key.split("/")
    return mode, int(streams), variant


def _plot(
    table: dict[str, Any], mode: str, figure: str, title: str, scale: str, folder: Path
) -> str:
    lines: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for key in sorted(table, key=_order):
        row_mode, streams, variant = key.split("/")
        if row_mode == mode:
            lines.setdefault(variant, []).append((int(streams), table[key][figure]))
    drawing, axes = pyplot.subplots(figsize=(7, 4.2), dpi=110)
    for variant, points in lines.items():
        counts = [count for count, _ in points]
        middle = [value["median"] for _, value in points]
        below = [value["median"] - value["least"] for _, value in points]
        above = [value["most"] - value["median"] for _, value in points]
        axes.errorbar(counts, middle, yerr=[below, above], marker="o", capsize=3, label=variant)
    axes.set_xscale("log", base=2)
    axes.set_yscale(scale)
    axes.set_xlabel("streams")
    axes.set_title(f"{title}, {mode}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    name = f"{mode}-{figure}.png"
    drawing.tight_layout()
    drawing.savefig(folder / name)
    pyplot.close(drawing)
    return name


def _bars(microseconds: dict[str, float], folder: Path) -> str:
    drawing, axes = pyplot.subplots(figsize=(7, 3), dpi=110)
    axes.barh(list(microseconds), list(microseconds.values()))
    axes.invert_yaxis()
    axes.set_title("Hand-over of one chunk, 512 streams (µs of CPU)", fontsize=10)
    drawing.tight_layout()
    drawing.savefig(folder / "handover.png")
    pyplot.close(drawing)
    return "handover.png"
