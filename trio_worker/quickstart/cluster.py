# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A frontend and workers as real processes, in sessions of their own, on loopback only."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from compat.processes import descendants
from trio_worker.quickstart.chat import HOST, get

DISCOVERY = "DYN_FILE_KV"
"""The variable that names the folder of file discovery."""

READY_LINE = "Model registration succeeded"
"""What both workers log once they are registered."""

READY_S = 300.0
"""Seconds that a worker may take to be ready: imports and a model load on a busy machine."""

STOP_S = 45.0
"""Seconds that a process may take to stop before it is killed."""

LINGER_S = 5.0
"""Seconds that killed processes get to be gone."""

CPU_ENGINE_ARGS = (
    "--device",
    "cpu",
    # Without it SGLang's scheduler keeps a core busy while nobody asks.
    "--sleep-on-idle",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    "--grammar-backend",
    "none",
    "--mem-fraction-static",
    "0.2",
    "--max-total-tokens",
    "100000",
)
"""The real SGLang scheduler on a machine without a GPU."""


class ProcessDied(Exception):
    """A process of the cluster ended while it was waited for."""


@dataclass
class Process:
    """One child in a session of its own, with its output in a file."""

    name: str
    popen: trio.Process
    log: Path
    started: float
    """Trio time, seconds."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self.popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit status once it is known; negative: the signal that killed it."""
        return self.popen.returncode

    def output(self) -> str:
        """What it has written so far."""
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 25) -> str:
        """The last lines that it has written."""
        return "\n".join(self.output().splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self.popen.send_signal(number)

    def family(self) -> list[int]:
        """The process and its living descendants."""
        return [self.pid, *descendants(self.pid)]

    async def wait(self, seconds: float = STOP_S) -> int:
        """Trio. The exit status; raises `trio.TooSlowError`."""
        with trio.fail_after(seconds):
            return await self.popen.wait()

    def raise_if_dead(self) -> None:
        """Raises `ProcessDied`, with the last lines of its output, unless it lives."""
        if self.popen.poll() is not None:
            raise ProcessDied(f"{self.name} ended with status {self.returncode}:\n{self.tail()}")

    async def wait_line(self, text: str, seconds: float = READY_S) -> None:
        """Trio. Until its output holds `text`. Raises `ProcessDied`, `trio.TooSlowError`."""
        with trio.fail_after(seconds):
            while text not in self.output():
                self.raise_if_dead()
                await trio.sleep(0.1)


@dataclass
class Cluster:
    """What runs, and how to start more of it."""

    folder: Path
    port: int
    model: Path | str
    model_name: str
    env: dict[str, str]
    frontend: Process | None = None
    workers: list[Process] = field(default_factory=list)

    @property
    def members(self) -> list[Process]:
        """All that were started: workers, then the frontend."""
        return [*self.workers, *([self.frontend] if self.frontend else [])]

    async def start_frontend(self, *args: str) -> Process:
        """Trio. ``dynamo.frontend``; `wait_frontend` tells when it answers."""
        command = [
            *(sys.executable, "-m", "dynamo.frontend"),
            *("--http-host", HOST, "--http-port", str(self.port)),
            *args,
        ]
        self.frontend = await self._start("frontend", command, {})
        return self.frontend

    async def start_worker(
        self,
        *args: str,
        module: str = "trio_worker",
        env: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Process:
        """Trio. One worker; `wait_ready` tells when it serves."""
        command = [
            *(sys.executable, "-m", module),
            *("--model-path", str(self.model), "--served-model-name", self.model_name),
            *args,
        ]
        worker = await self._start(name or f"worker-{len(self.workers)}", command, env or {})
        self.workers.append(worker)
        return worker

    async def _start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> Process:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            popen = await trio.lowlevel.open_process(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.env, **env},
                start_new_session=True,
            )
        return Process(name, popen, log, trio.current_time())

    async def wait_frontend(self, seconds: float = READY_S) -> None:
        """Trio. Until the frontend answers. Raises `ProcessDied`, `trio.TooSlowError`."""
        with trio.fail_after(seconds):
            while True:
                if self.frontend is not None:
                    self.frontend.raise_if_dead()
                with trio.move_on_after(1):
                    if (await get(self.port, "/v1/models"))[0] == 200:
                        return
                await trio.sleep(0.1)

    async def wait_any_death(self) -> None:
        """Trio. Until a member ends, and then raise its `ProcessDied`."""
        async with trio.open_nursery() as nursery:

            async def watch(process: Process) -> None:
                await process.popen.wait()
                nursery.cancel_scope.cancel()

            for process in self.members:
                nursery.start_soon(watch, process)
        for process in self.members:
            process.raise_if_dead()

    async def wait_model(self, seconds: float = READY_S) -> None:
        """Trio. Until the frontend lists it; raises `trio.TooSlowError` with what is seen then."""
        try:
            with trio.fail_after(seconds):
                while not await self.lists_model():
                    await trio.sleep(0.1)
        except trio.TooSlowError as error:
            for path in self.registered():
                error.add_note(f"registered: {path.name}")
            for process in self.members:
                error.add_note(f"{process.name} said last:\n{process.tail()}")
            raise

    async def lists_model(self) -> bool:
        """Trio. Whether the frontend lists the model now."""
        status, body = await get(self.port, "/v1/models")
        return status == 200 and any(
            entry["id"] == self.model_name for entry in json.loads(body)["data"]
        )

    async def stop(self, process: Process, seconds: float = STOP_S) -> int:
        """Trio. SIGTERM, wait, SIGKILL to its whole family if that takes too long."""
        if process.popen.poll() is None:
            process.signal(signal.SIGTERM)
            with trio.move_on_after(seconds):
                return await process.popen.wait()
            self.kill(process)
        return await process.popen.wait()

    def kill(self, process: Process) -> None:
        """SIGKILL to the process and all of its descendants."""
        _kill(process.family())

    async def stop_all(self) -> dict[str, int]:
        """Trio. Workers first, at once, then the frontend; the exit status of each by name."""
        statuses: dict[str, int] = {}

        async def stop(process: Process) -> None:
            statuses[process.name] = await self.stop(process)

        async with trio.open_nursery() as nursery:
            for worker in self.workers:
                nursery.start_soon(stop, worker)
        if self.frontend is not None:
            await stop(self.frontend)
        return statuses

    def left_behind(self) -> list[int]:
        """Living processes of this cluster that no living member of it answers for.

        Found by the discovery folder in their environment, which all of them inherit: neither a
        dead parent nor a session of its own hides one. Linux only.
        """
        alive = (process for process in self.members if process.popen.poll() is None)
        answered_for = {pid for process in alive for pid in process.family()}
        return sorted(set(_processes_with(DISCOVERY, self.env[DISCOVERY])) - answered_for)

    def registered(self) -> list[Path]:
        """Instances that discovery shows."""
        return [path for path in Path(self.env[DISCOVERY]).rglob("*") if path.is_file()]


class PortInUse(Exception):
    """The port that was asked for belongs to somebody else."""


def require_free(port: int) -> int:
    """The port, if it can be had now; raises `PortInUse`.

    Asked beforehand, because whoever has it may answer as a frontend would.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortInUse(f"port {port} on {HOST} can't be had: {error.strerror}") from None
    return port


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def free_system_port() -> int:
    """A port for ``DYN_SYSTEM_PORT``, which the runtime reads as a signed 16-bit number."""
    for port in random.sample(range(10_000, 32_768), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise PortInUse("no free port below 32768")


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes_with(variable: str, value: str) -> Iterator[int]:
    """Living processes of this user that were started with `variable` set to `value`."""
    wanted = f"{variable}={value}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            # Others' processes and those that just went have nothing to tell; a zombie's is empty.
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def _environment(model: Path | str, private: Path, more: Mapping[str, str]) -> dict[str, str]:
    """What frontend and workers find in their environment: discovery by files, loopback only."""
    return {
        **os.environ,
        "DYN_DISCOVERY_BACKEND": "file",
        DISCOVERY: str(private / "kv"),
        # Some leave files behind.
        "TMPDIR": str(private),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": HOST,
        # A local folder is complete: nothing is asked of a hub.
        **({"HF_HUB_OFFLINE": "1"} if Path(model).is_dir() else {}),
        # A small model gains nothing from a second thread, and on a busy machine threads that wait
        # for each other make it twenty times slower. On a GPU, SGLang sets one by itself.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        **more,
    }


@asynccontextmanager
async def open_cluster(
    model: Path | str,
    *,
    model_name: str = "recitation",
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    keep: Path | None = None,
) -> AsyncIterator[Cluster]:
    """Trio. An empty cluster with private file discovery; everything is stopped on leaving.

    `model`: a folder, or the name of a model on a hub. Raises `PortInUse`.
    `keep`: folder for logs that stays; default: a temporary one that goes.
    """
    port = free_port() if port is None else require_free(port)
    # A short path, since the engine's sockets live in it, and the name of a socket is short.
    private = Path(tempfile.mkdtemp(prefix="trio-worker-"))
    (private / "kv").mkdir()
    folder = keep or private
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(
        folder=folder,
        port=port,
        model=model,
        model_name=model_name,
        env=_environment(model, private, env or {}),
    )
    try:
        yield cluster
    finally:
        with trio.CancelScope(shield=True):  # bounded: STOP_S and LINGER_S
            await cluster.stop_all()
            with trio.move_on_after(LINGER_S):
                while left := cluster.left_behind():
                    _kill(left)
                    await trio.sleep(0.02)
        shutil.rmtree(private, ignore_errors=True)
