# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Starts that can't be: usage with 2, or one line that names the cause with 1; nothing stays."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.served import left_behind
from tests.standin.tiny_model import write_tiny_model
from trio_worker.quickstart.chat import HOST
from trio_worker.quickstart.cluster import free_system_port, open_cluster

# Each imports SGLang, but for the first.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

START_S = 300.0
"""Seconds that a start may take to fail."""

STAND_IN = ("--device", "cpu", "--stand-in-scheduler", "step_ms=8")


@dataclass(frozen=True, slots=True)
class Failure:
    """How a start ended."""

    status: int
    output: str
    registered: list[Path]
    left_behind: list[int]

    @property
    def causes(self) -> list[str]:
        """Lines that tell of an error."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.output)
        return [line for line in plain.splitlines() if re.search(r"\bERROR\b|error:", line)]

    def assert_harmless(self) -> None:
        """Nothing stays, and nobody has to read a traceback."""
        assert self.registered == []
        assert self.left_behind == []
        assert "Traceback" not in self.output


async def start(model: Path | str, *args: str, env: Mapping[str, str] | None = None) -> Failure:
    """Trio. A worker that must not come up."""
    async with open_cluster(model, env=env) as cluster:
        worker = await cluster.start_worker(*args)
        status = await worker.wait(START_S)
        return Failure(status, worker.output(), cluster.registered(), await left_behind(cluster))


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody else listens there."""
    with socket.socket() as other:
        other.bind((HOST, port))
        other.listen()
        yield


async def test_model_path_that_is_not_there(tmp_path: Path) -> None:
    failure = await start(tmp_path / "nowhere", *STAND_IN)
    assert failure.status == 1
    (line,) = failure.causes
    assert str(tmp_path / "nowhere") in line
    failure.assert_harmless()


async def test_unknown_flag_is_a_usage_error(tmp_path: Path) -> None:
    failure = await start(write_tiny_model(tmp_path), *STAND_IN, "--no-such-flag")
    assert failure.status == 2
    assert "usage:" in failure.output
    assert "--no-such-flag" in failure.output
    failure.assert_harmless()


async def test_bad_value_of_our_own_flag_is_a_usage_error(tmp_path: Path) -> None:
    failure = await start(write_tiny_model(tmp_path), "--stand-in-scheduler", "step=8")
    assert failure.status == 2
    assert "step" in failure.causes[0]
    failure.assert_harmless()


async def test_system_port_in_use(tmp_path: Path) -> None:
    port = free_system_port()
    with taken(port):
        failure = await start(
            write_tiny_model(tmp_path),
            *STAND_IN,
            env={"DYN_SYSTEM_PORT": str(port), "DYN_SYSTEM_HOST": HOST},
        )
    assert failure.status == 1
    (line,) = failure.causes
    assert str(port) in line
    failure.assert_harmless()


async def test_discovery_out_of_reach(tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound, but nobody listens
        nobody.bind((HOST, 0))
        address = f"{HOST}:{nobody.getsockname()[1]}"
        failure = await start(
            write_tiny_model(tmp_path),
            *STAND_IN,
            env={
                "DYN_DISCOVERY_BACKEND": "etcd",
                "ETCD_ENDPOINTS": f"http://{address}",
                # How long the worker tries is Dynamo's setting.
                "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS": "3",
            },
        )
    assert failure.status == 1
    (line,) = failure.causes
    assert address in line
    failure.assert_harmless()


async def test_engine_that_does_not_come_up(tmp_path: Path) -> None:
    failure = await start(
        write_tiny_model(tmp_path), "--device", "cpu", "--stand-in-scheduler", "load=exit"
    )
    assert failure.status == 1
    assert failure.registered == []
    assert failure.left_behind == []
