# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One worker variant behind the real frontend under load, and what it cost.

Worker CPU comes from the kernel's clocks of its main thread and its process, read at the start and
the end of the load generator's window.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from tests.standin.tiny_model import write_tiny_model
from trio_worker.quickstart.cluster import Cluster, Process, open_cluster

HERE = Path(__file__).resolve().parent
PROMPT = "A B C D E F G H I J " * 6
MODES: dict[str, tuple[str, ...]] = {
    "default": (),
    "metrics": ("--enable-metrics",),
    "skip-tokenizer-init": ("--skip-tokenizer-init",),
}


@dataclass(frozen=True)
class Load:
    """One measurement's shape; times in seconds."""

    streams: int
    max_tokens: int = 1024
    ramp: float = 3.0
    settle: float = 3.0
    window: float = 10.0


@dataclass
class Variant:
    """A running worker of one kind, alone behind its own frontend."""

    name: str
    cluster: Cluster
    worker: Process
    counts_file: Path
    load_program: Path

    def counts(self) -> dict[str, float]:
        """Full collections of the worker's main process so far."""
        found: dict[str, float] = json.loads(self.counts_file.read_text())
        return found

    async def measure(self, load: Load) -> dict[str, Any]:
        """Trio. One window of load."""
        command = [
            str(self.load_program),
            *(str(self.cluster.port), self.cluster.model_name, str(load.streams)),
            *map(str, (load.max_tokens, load.ramp, load.settle, load.window)),
            PROMPT.strip(),
        ]
        snapshots: list[dict[str, float]] = []
        text = b""
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        async for part in process.stdout:
            text += part
            while len(snapshots) < text.count(b"window\n"):
                snapshots.append(self._snapshot())
        await process.wait()
        begin, end = snapshots
        result: dict[str, Any] = json.loads(text.splitlines()[-1])
        return {**result, **_derived(result, begin, end), "streams": load.streams}

    def _snapshot(self) -> dict[str, float]:
        pid = self.worker.pid
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        counts = self.counts()
        return {
            "main_s": _thread_seconds(pid),
            "process_s": _process_seconds(pid),
            "busy_s": _machine_seconds(),
            "resident_mb": int(fields["VmRSS"].split()[0]) / 1024,
            "switches": _switches(pid),
            "full": counts["full"],
            "pause_s": counts["pause_s"],
            "wall_s": time.monotonic(),
        }


def _derived(
    result: dict[str, Any], begin: dict[str, float], end: dict[str, float]
) -> dict[str, float]:
    wall = end["wall_s"] - begin["wall_s"]
    chunks = max(1, result["chunks"])
    tokens = max(1, result["tokens"])
    main = (end["main_s"] - begin["main_s"]) * 1e6
    process = (end["process_s"] - begin["process_s"]) * 1e6
    return {
        "tokens_per_s": result["tokens"] / wall,
        "chunks_per_s": result["chunks"] / wall,
        "tokens_per_chunk": result["tokens"] / chunks,
        "main_us_per_chunk": main / chunks,
        "main_us_per_token": main / tokens,
        "process_us_per_chunk": process / chunks,
        "process_us_per_token": process / tokens,
        "main_share": main / 1e6 / wall,
        "machine_cores_busy": (end["busy_s"] - begin["busy_s"]) / wall,
        "full_collections": end["full"] - begin["full"],
        "full_pause_s": end["pause_s"] - begin["pause_s"],
        "resident_mb": end["resident_mb"],
        "switches_per_chunk": (end["switches"] - begin["switches"]) / chunks,
    }


def _thread_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _process_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine_seconds() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _switches(pid: int) -> float:
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "_ctxt_switches" in line)


def build_load_program(folder: Path) -> Path:
    """Neither flavour. Compile the load generator."""
    program = folder / "load"
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "load.c")], check=True)
    return program


def model_in(folder: Path) -> Path:
    """Neither flavour. The model folder that all variants share."""
    model = folder / "model"
    return model if model.exists() else write_tiny_model(model)


@asynccontextmanager
async def open_variant(
    name: str, mode: str, folder: Path, *, more: Sequence[str] = ()
) -> AsyncIterator[Variant]:
    """Trio. A frontend and one worker of variant `name` in `mode`, ready."""
    async with open_cluster(
        model_in(folder),
        model_name="bench",
        env={"DYN_LOG": "warn,dynamo.sglang.register=info", "PYTHONPATH": str(HERE.parents[1])},
        keep=folder / f"{name}-{mode}",
    ) as cluster:
        await cluster.start_frontend()
        counts_file = cluster.folder / "counts.json"
        command = [sys.executable, str(HERE / "launch.py"), name, str(counts_file)]
        args = ["--model-path", str(cluster.model), "--served-model-name", "bench"]
        worker = await cluster._start(
            "worker", [*command, *args, "--device", "cpu", *MODES[mode], *more], {}
        )
        cluster.workers.append(worker)
        await cluster.wait_model()
        yield Variant(name, cluster, worker, counts_file, build_load_program(cluster.folder))
