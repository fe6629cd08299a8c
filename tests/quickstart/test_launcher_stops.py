# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The launcher as a process, with a real frontend and workers that never get ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.e2e


@asynccontextmanager
async def launcher(folder: Path, *args: str) -> AsyncIterator[trio.Process]:
    """Trio. A running launcher with temporary files under `folder`; killed on leaving."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "trio_worker.quickstart", "--model", str(folder), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        assert process.stdout is not None
        await process.stdout.aclose()


async def read(process: trio.Process, until: str | None = None) -> str:
    """Trio. What the launcher says until `until`, or to its end."""
    assert process.stdout is not None
    said = ""
    async for data in process.stdout:
        said += data.decode()
        if until is not None and until in said:
            break
    return said


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_stop_while_the_worker_starts(tmp_path: Path, number: signal.Signals) -> None:
    async with launcher(tmp_path, "--worker", "tests.quickstart.sleeper") as process:
        said = await read(process, until="worker-0: loading the model")
        process.send_signal(number)
        said += await read(process)
        assert await process.wait() == 0
    stop = said.index(number.name)
    worker = said.index("worker-0 ended, status 0")
    frontend = said.index("frontend ended, status 0")
    assert stop < worker < frontend < said.index("processes left behind: none")
    assert files_in(tmp_path) == []


async def test_smoke_that_is_stopped_has_not_passed(tmp_path: Path) -> None:
    async with launcher(tmp_path, "--smoke", "--worker", "tests.quickstart.sleeper") as process:
        await read(process, until="worker-0: loading the model")
        process.terminate()
        await read(process)
        assert await process.wait() == 130


async def test_worker_that_dies_is_shown(tmp_path: Path) -> None:
    async with launcher(tmp_path, "--worker", "no_such_worker") as process:
        said = await read(process)
        assert await process.wait() == 1
    assert "No module named no_such_worker" in said
    assert "frontend ended, status 0" in said
    assert files_in(tmp_path) == []


async def test_port_in_use_is_named(tmp_path: Path) -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        async with launcher(tmp_path, "--port", port) as process:
            said = await read(process)
            assert await process.wait() == 1
    assert f"port {port}" in said
