# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One worker variant behind the real frontend under load, and what it cost.

Worker CPU comes from the kernel's clocks of its main thread and its process, read at the start and
the end of the load generator's window.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from compat.processes import descendants
from tests.bench.launch import SCRIPT_VARIABLE
from tests.standin.tiny_model import write_tiny_model
from trio_worker.quickstart.cluster import (
    Cluster,
    Process,
    free_system_port,
    open_cluster,
)

HERE = Path(__file__).resolve().parent
PROMPT = "A B C D E F G H I J " * 6
CONTEXT = 40_000
"""Tokens of prompt and answer together."""
REST_S = 60.0
"""Seconds that a variant may take to come to rest after a load."""
IDLE_SHARE = 0.05
"""Of one core: what a worker and its frontend use at rest."""
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
    system_port: int
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

    @property
    def _frontend(self) -> Process:
        assert self.cluster.frontend is not None
        return self.cluster.frontend

    def _children(self) -> dict[str, int]:
        """The engine's processes by what they are."""
        found = {}
        for pid in descendants(self.worker.pid):
            with suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_text()
                for name in ("scheduler", "detokenizer"):
                    if title.startswith(f"sglang::{name}"):
                        found[name] = pid
        return found

    async def ready(self) -> None:
        """Trio. Until the frontend lists the model."""
        await self.cluster.wait_model()

    async def rest(self) -> None:
        """Trio. Until what the last load left behind has been worked off, within a minute."""
        with trio.move_on_after(REST_S):
            before = math.inf
            while True:
                spent = sum(
                    _process_seconds(process.pid) for process in (self.worker, self._frontend)
                )
                if spent - before < IDLE_SHARE:
                    return
                before = spent
                await trio.sleep(1)

    def _snapshot(self) -> dict[str, float]:
        pid = self.worker.pid
        counts = self.counts()
        return {
            "main_s": _thread_seconds(pid),
            "process_s": _process_seconds(pid),
            "frontend_s": _process_seconds(self._frontend.pid),
            **{f"{name}_s": _process_seconds(child) for name, child in self._children().items()},
            "busy_s": _machine_seconds(),
            "resident_mb": resident_mb(pid),
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
        **{
            f"{name}_share": (end[f"{name}_s"] - begin[f"{name}_s"]) / wall
            for name in ("process", "frontend", "scheduler", "detokenizer")
        },
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


def resident_mb(pid: int) -> float:
    """Memory of one process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _switches(pid: int) -> float:
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "_ctxt_switches" in line)


def build_load_program(folder: Path) -> Path:
    """Neither flavour. Compile the load generator."""
    program = folder / "load"
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "load.c")], check=True)
    return program


def model_in(folder: Path) -> Path:
    """Neither flavour. The model folder that all variants share; long answers fit."""
    model = folder / f"model-{CONTEXT}"
    return model if model.exists() else write_tiny_model(model, CONTEXT)


@asynccontextmanager
async def open_variant(
    name: str,
    mode: str,
    folder: Path,
    *,
    more: Sequence[str] = (),
    script: str = "step_ms=8",
) -> AsyncIterator[Variant]:
    """Trio. A frontend and one worker of variant `name` in `mode`; `Variant.ready` waits for it.

    `script` is the stand-in scheduler's.
    """
    system_port = free_system_port()
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
        environment = {"DYN_SYSTEM_PORT": str(system_port), SCRIPT_VARIABLE: script}
        worker = await cluster._start(
            "worker", [*command, *args, "--device", "cpu", *MODES[mode], *more], environment
        )
        cluster.workers.append(worker)
        program = build_load_program(cluster.folder)
        yield Variant(name, cluster, worker, system_port, counts_file, program)
