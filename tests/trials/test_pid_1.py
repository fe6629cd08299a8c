# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The worker as PID 1 of a PID namespace, as in a container without an init."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from compat.processes import descendants
from tests.e2e.backing import StandIn
from tests.e2e.served import left_behind, ready, system_env
from trio_worker.quickstart.chat import chat
from trio_worker.quickstart.cluster import Process, free_system_port, open_cluster

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

REAP_S = 5.0
"""Seconds until an orphan that has died is reaped."""


def _may_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1000),
    pytest.mark.skipif(
        not _may_unshare(), reason="needs unshare, nsenter and the right to use them"
    ),
]


async def test_serves_reaps_and_stops_as_pid_1(tmp_path: Path) -> None:
    backing = StandIn.make(tmp_path, "step_ms=8")
    async with open_cluster(backing.model, model_name=backing.name) as cluster:
        await cluster.start_frontend()
        command = (sys.executable, "-m", "trio_worker", "--model-path", str(backing.model))
        outer = await cluster._start(
            "worker-0",
            [*UNSHARE, *command, "--served-model-name", backing.name, *backing.args],
            system_env(backing, free_system_port()),
        )
        cluster.workers.append(outer)
        await ready(cluster, outer)
        worker = _child(outer)
        assert _inner_pid(worker) == 1

        answer = await chat(cluster.port, backing.name, "Who is 1?", max_tokens=50, temperature=0)
        assert answer.text == backing.expected("Who is 1?", 50)

        before = set(descendants(worker))
        # A child of a child that dies first: the namespace hands it to PID 1.
        await trio.run_process(
            ["nsenter", "--target", str(worker), "--pid", "sh", "-c", "(sleep 1 &) ; true"]
        )
        assert set(descendants(worker)) - before
        with trio.fail_after(REAP_S):
            while _zombies_of(worker) or set(descendants(worker)) - before:
                await trio.sleep(0.05)
        assert outer.popen.returncode is None

        os.kill(worker, signal.SIGTERM)
        # unshare hands the status of its child on.
        assert await outer.wait() == 0, outer.tail()
        assert await left_behind(cluster) == []
        assert cluster.registered() == []


def _child(outer: Process) -> int:
    return descendants(outer.pid)[0]


def _inner_pid(pid: int) -> int:
    """The process's pid in its own namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def _zombies_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == parent:
                found.append(int(folder.name))
    return found
