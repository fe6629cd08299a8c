# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The cluster's handling of processes, with small scripts in the place of the real ones."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from trio_worker.quickstart import cluster as module
from trio_worker.quickstart.cluster import Cluster, Process, ProcessDied, open_cluster

SAYS_READY = f"print({module.READY_LINE!r}, flush=True)"
SLEEPS = f"import time; {SAYS_READY}; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
LEAVES_A_CHILD = (
    "import subprocess, sys; subprocess.Popen("
    f"[sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); {SAYS_READY}"
)


async def start(cluster: Cluster, script: str, name: str) -> Process:
    """Trio. A worker that runs `script`; ready when it says so."""
    cluster.workers.append(await cluster._start(name, [module.sys.executable, "-c", script], {}))
    await cluster.workers[-1].wait_line(module.READY_LINE)
    return cluster.workers[-1]


async def test_members_live_in_sessions_of_their_own_and_see_private_discovery(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path) as cluster:
        tells = "import os; print(os.getpid() == os.getsid(0), os.environ['DYN_FILE_KV']);"
        worker = await start(cluster, tells + SAYS_READY, "a")
        assert await worker.wait() == 0
        discovery = worker.output().split()[1]
        assert worker.output().startswith("True ")
        assert await trio.Path(discovery).is_dir()
        assert discovery.startswith(str(cluster.folder))
    assert not cluster.folder.exists()


async def test_leaving_stops_all_and_keeps_logs_if_asked(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, keep=tmp_path / "logs") as cluster:
        workers = [await start(cluster, SLEEPS, name) for name in "ab"]
        assert cluster.left_behind() == []  # two members that live answer for themselves
    assert [worker.returncode for worker in workers] == [-signal.SIGTERM] * 2
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["a.log", "b.log"]
    assert module.READY_LINE in (tmp_path / "logs" / "a.log").read_text()


async def test_stubborn_member_is_killed_with_its_family(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster:
        worker = await start(cluster, STUBBORN, "a")
        assert await cluster.stop(worker, seconds=0.01) == -signal.SIGKILL
        assert cluster.left_behind() == []


async def test_orphan_in_another_session_is_found_and_ended(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster:
        worker = await start(cluster, LEAVES_A_CHILD, "a")
        assert await worker.wait() == 0
        (orphan,) = cluster.left_behind()
        assert await trio.Path(f"/proc/{orphan}").exists()
    assert cluster.left_behind() == []


async def test_stop_all_tells_each_status(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster:
        exits = f"import sys; {SAYS_READY}; sys.exit(3)"
        await (await start(cluster, exits, "a")).wait()
        await start(cluster, SLEEPS, "b")
        assert await cluster.stop_all() == {"a": 3, "b": -signal.SIGTERM}


async def test_death_while_waited_for_is_told_with_its_last_words(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster:
        with pytest.raises(ProcessDied, match=r"(?s)status 1.*no such model"):
            await start(cluster, "raise SystemExit('no such model')", "a")


async def test_cancelling_stops_all_too(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_cluster(tmp_path) as cluster:
            worker = await start(cluster, SLEEPS, "a")
            scope.cancel()
            await trio.sleep_forever()
    assert worker.returncode == -signal.SIGTERM


async def test_a_hub_is_asked_only_for_what_is_no_folder(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as local, open_cluster("maker/model") as remote:
        assert local.env["HF_HUB_OFFLINE"] == "1"
        assert remote.env.get("HF_HUB_OFFLINE") == module.os.environ.get("HF_HUB_OFFLINE")


async def test_any_death_is_told(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster:
        await start(cluster, SLEEPS, "a")
        dying = await start(cluster, SLEEPS, "b")
        dying.signal(signal.SIGKILL)
        with pytest.raises(ProcessDied, match="b ended with status -9"):
            await cluster.wait_any_death()
