# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""etcd and NATS as real processes on loopback, private and new."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from trio_worker.quickstart.chat import HOST
from trio_worker.quickstart.cluster import free_port
from trio_worker.quickstart.recitation.cache import cache_folder

UP_S = 30.0
"""Seconds that a service may take to listen."""


PACKAGES = ("etcd-server", "etcd-client", "nats-server")
PROGRAMS = ("etcd", "etcdctl", "nats-server")


def unpacked() -> Path:
    """Where Debian's packages are unpacked, for programs that are not installed."""
    return cache_folder() / "debian"


def obtain() -> str:
    """Neither flavour. Unpack what is not installed; why there can be no services, or nothing.

    Needs apt's lists but no rights: nothing is installed, and the maintainers' scripts, which
    would start the services, do not run.
    """
    if all(map(_program, PROGRAMS)):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                ["apt-get", "download", *PACKAGES],
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=UP_S,
            )
            unpacked().mkdir(parents=True, exist_ok=True)
            for package in Path(folder).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, unpacked()], check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"neither installed nor to be had: {', '.join(PACKAGES)} ({error})"
    return ""


def _program(name: str) -> str | None:
    folders = [unpacked() / "usr" / part for part in ("bin", "sbin")]
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *map(str, folders)]
    return shutil.which(name, path=os.pathsep.join(places))


@dataclass
class Etcd:
    """One etcd that can be stopped, frozen and started again with what it knew."""

    folder: Path
    port: int
    popen: trio.Process | None = None

    async def start(self) -> None:
        """Trio. Up and answering."""
        peer = free_port()
        url = f"http://{HOST}:{self.port}"
        with (self.folder / "etcd.log").open("ab") as log:
            self.popen = await trio.lowlevel.open_process(
                [
                    *(str(_program("etcd")), "--data-dir", str(self.folder / "etcd")),
                    *("--listen-client-urls", url, "--advertise-client-urls", url),
                    *("--listen-peer-urls", f"http://{HOST}:{peer}"),
                    *("--initial-advertise-peer-urls", f"http://{HOST}:{peer}"),
                    *("--initial-cluster", f"default=http://{HOST}:{peer}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        await _listening(self.port)

    async def stop(self) -> None:
        """Trio. Gone; what it stored stays."""
        await _end(self.popen)
        self.popen = None

    def freeze(self) -> None:
        """It answers nobody from now on, and closes nothing."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGCONT)

    async def ctl(self, *command: str) -> str:
        """Trio. What etcdctl prints; raises `subprocess.CalledProcessError`."""
        done = await trio.run_process(
            [str(_program("etcdctl")), "--endpoints", f"{HOST}:{self.port}", *command],
            capture_stdout=True,
            env={**os.environ, "ETCDCTL_API": "3"},
        )
        return done.stdout.decode()

    async def keys(self, prefix: str) -> list[str]:
        """Trio. All keys that begin with `prefix`."""
        text = await self.ctl("get", "--prefix", prefix, "--keys-only")
        return [line for line in text.splitlines() if line]

    async def revoke_leases_of(self, prefix: str) -> int:
        """Trio. Revoke every lease that a key under `prefix` hangs on; how many there were."""
        revoked = 0
        for lease in (await self.ctl("lease", "list")).split()[3:]:
            if prefix in await self.ctl("lease", "timetolive", lease, "--keys"):
                await self.ctl("lease", "revoke", lease)
                revoked += 1
        return revoked


@dataclass
class Services:
    """Discovery and messages."""

    etcd: Etcd
    nats_port: int

    @property
    def env(self) -> Mapping[str, str]:
        """What frontend and workers need to know."""
        return {
            "DYN_DISCOVERY_BACKEND": "etcd",
            "ETCD_ENDPOINTS": f"http://{HOST}:{self.etcd.port}",
            "DYN_REQUEST_PLANE": "nats",
            "DYN_EVENT_PLANE": "nats",
            "NATS_SERVER": f"nats://{HOST}:{self.nats_port}",
        }


@asynccontextmanager
async def open_services() -> AsyncIterator[Services]:
    """Trio. Both, in a folder that goes with them."""
    folder = Path(tempfile.mkdtemp(prefix="trio-worker-services-"))
    services = Services(Etcd(folder, free_port()), free_port())
    nats: trio.Process | None = None
    try:
        await services.etcd.start()
        with (folder / "nats.log").open("ab") as log:
            nats = await trio.lowlevel.open_process(
                [
                    *(str(_program("nats-server")), "--addr", HOST),
                    *("--port", str(services.nats_port), "--jetstream"),
                    *("--store_dir", str(folder / "nats")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        await _listening(services.nats_port)
        yield services
    finally:
        with trio.CancelScope(shield=True):  # killed: takes no time
            await _end(services.etcd.popen)
            await _end(nats)
        shutil.rmtree(folder, ignore_errors=True)


async def _end(process: trio.Process | None) -> None:
    if process is not None:
        process.kill()
        await process.wait()


async def _listening(port: int) -> None:
    with trio.fail_after(UP_S):
        while True:
            try:
                stream = await trio.open_tcp_stream(HOST, port)
            except OSError:
                await trio.sleep(0.05)
            else:
                await stream.aclose()
                return
