# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Frozen before the first connection (R15), or asleep until a restore (R16)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import trio
import trio.testing

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from compat.loop import open_loop
from compat.runtime_errors import RuntimeTooSlow
from trio_worker.errors import BadArguments
from trio_worker.roles import snapshot
from trio_worker.roles.snapshot import SnapshotRole, wait_for_restore
from trio_worker.shutdown import Bounds, ExitStatus, Shutdown, StopReason


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The volume through which the snapshot agent speaks; the process's environment is its own."""
    with mock.patch.dict(os.environ, {"DYN_SNAPSHOT_CONTROL_DIR": str(tmp_path)}):
        for name in ("HF_HUB_OFFLINE", "DYN_NAMESPACE", "DYN_GMS_USE_V1", "FAILOVER_LOCK_PATH"):
            os.environ.pop(name, None)
        yield tmp_path


def config() -> Any:
    return SimpleNamespace(
        server_args=SimpleNamespace(
            disaggregation_mode="null", node_rank=0, dist_init_addr=None, nccl_port=None
        ),
        dynamo_args=SimpleNamespace(diffusion_worker=False, namespace="before"),
        validate_engine_server_args=lambda _server_args: None,
    )


class FakeEngine:
    """What the role asks of an engine; `calls` in their order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.engine = SimpleNamespace(server_args=None)
        self.load_seconds: float | None = 3.0
        self.resolved_server_args = None
        self.child_pids = [os.getpid()]
        self.death = ""
        self.dies_after = float("inf")

    async def watch_children(self) -> None:
        await trio.sleep(self.dies_after)
        self.death = "child process 1 exited with status -9"


class Frozen:
    """A role whose engine, warm-up and pausing are fakes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.role = SnapshotRole()
        self.role._released_tags = ["kv_cache"]
        self.engine = engine = FakeEngine()
        self.shutdown = Shutdown(Bounds())
        self.warm_up_s = 0.0
        self.reached = trio.Event()

        @asynccontextmanager
        async def open_engine(_loop: Any, _build: Any) -> AsyncIterator[FakeEngine]:
            engine.calls.append("built")
            yield engine

        async def warmup_engine(_engine: Any, _server_args: Any) -> None:
            await asyncio.sleep(self.warm_up_s)
            engine.calls.append("warm")

        class PauseController:
            def __init__(self, _engine: Any, tags: list[str]) -> None:
                assert tags == ["kv_cache"]

            async def pause(self) -> None:
                engine.calls.append("paused")

            async def resume(self) -> None:
                engine.calls.append("resumed")

            def mark_resumed(self) -> None:
                pass

        monkeypatch.setattr(snapshot, "open_engine", open_engine)
        monkeypatch.setattr(snapshot, "warmup_engine", warmup_engine)
        monkeypatch.setattr(snapshot, "PauseController", PauseController)

    async def live(self) -> None:
        """Trio. As far as a runtime would be opened."""
        loop: Any = None
        async with self.role.open_early(loop, config(), self.shutdown):
            self.reached.set()


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


async def until_ready(folder: Path) -> None:
    """Trio. Real threads look at the folder."""
    with trio.fail_after(30):
        while "ready-for-snapshot" not in names(folder):
            await trio.sleep(0.01)


async def test_the_original_leaves_with_status_0(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Frozen(monkeypatch)
    monkeypatch.setattr(snapshot, "POLL_S", 0.01)
    async with open_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(frozen.live)
        await until_ready(folder)
        assert frozen.engine.calls == ["built", "warm", "paused"]
        (folder / "snapshot-complete").touch()
        with trio.fail_after(30):
            await frozen.shutdown.requested.wait()
        assert frozen.shutdown.reason is StopReason.SNAPSHOT_TAKEN
        # No runtime is opened before the plan has cancelled all this.
        await trio.testing.wait_all_tasks_blocked()
        assert not frozen.reached.is_set()
        nursery.cancel_scope.cancel()
    assert await frozen.shutdown.run() is ExitStatus.ASKED
    assert names(folder) == set()


async def test_the_restored_one_goes_on_as_the_new_pod_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Frozen(monkeypatch)
    monkeypatch.setattr(snapshot, "POLL_S", 0.01)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", ["x", "--model-path", "m", "--shutdown-timeout", "9"])
    seen = config()
    context = {"env": {"DYN_NAMESPACE": "after", "ETCD_ENDPOINTS": None}}
    (folder / "restore-context.json").write_text(json.dumps(context))
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://old:2379")
    (folder / "restore-complete").touch()
    async with open_loop() as loop, frozen.role.open_early(loop, seen, frozen.shutdown):
        assert seen.dynamo_args.namespace == "after"
        assert "ETCD_ENDPOINTS" not in os.environ
        assert "HF_HUB_OFFLINE" not in os.environ
        # It stays for the pod's startup probe; what said "ready" is gone.
        assert names(folder) == {"restore-complete", "restore-context.json"}
        assert frozen.engine.calls == ["built", "warm", "paused"]
        runtime: Any = SimpleNamespace(runtime=object())
        async with frozen.role.open_engine(loop, seen, runtime) as engine:
            assert frozen.engine.calls[-1] == "resumed"
            assert engine.load_seconds == 0.0
    assert frozen.shutdown.reason is None


async def test_a_stop_while_frozen_is_prompt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Frozen(monkeypatch)
    with trio.fail_after(40):
        async with open_loop(), trio.open_nursery() as nursery:
            nursery.start_soon(frozen.live)
            await until_ready(folder)
            nursery.cancel_scope.cancel()
    assert not frozen.reached.is_set()
    assert names(folder) == set()


async def test_a_warm_up_that_hangs_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    frozen = Frozen(monkeypatch)
    frozen.warm_up_s = float("inf")
    async with open_loop():
        began = trio.current_time()
        with pytest.raises(RuntimeTooSlow, match="snapshot warm-up"):
            await frozen.live()
        assert trio.current_time() - began == snapshot.WARM_UP_S + snapshot.MARGIN_S
    # Nobody was told that it could be captured.
    assert names(folder) == set()


async def test_a_scheduler_that_dies_while_frozen_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = Frozen(monkeypatch)
    monkeypatch.setattr(snapshot, "POLL_S", 0.01)
    frozen.engine.child_pids = [2**22 + 1]  # beyond any pid
    async with open_loop():
        with pytest.raises(RuntimeError, match="exited while the worker was frozen"):
            await frozen.live()
    assert names(folder) == set()


async def test_a_volume_that_hangs_keeps_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(_folder: Path) -> None:
        trio.from_thread.run(release.wait, trio_token=token)

    monkeypatch.setattr(snapshot, "_sentinel", hang)
    with trio.fail_after(10):
        with trio.move_on_after(0.1) as patience:
            await wait_for_restore(folder, lambda: None)
    assert patience.cancelled_caught
    release.set()


async def test_a_standby_whose_engine_dies_does_not_wait_for_its_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    frozen = Frozen(monkeypatch)
    frozen.engine.dies_after = 100.0
    frozen.role._engine = frozen.engine  # type: ignore[assignment]
    frozen.role._pausing = None

    async def elect(_pausing: Any, _runtime: Any) -> None:
        await asyncio.sleep(10_000)

    monkeypatch.setattr(snapshot, "elect_and_wake", elect)
    runtime: Any = SimpleNamespace(runtime=object())
    async with open_loop() as loop:
        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="died before it was woken")):
            async with frozen.role.open_engine(loop, config(), runtime):
                pass


@pytest.mark.parametrize("field", ["diffusion_worker", "node_rank"])
def test_what_cannot_be_frozen_is_refused(field: str, folder: Path) -> None:
    asked = config()
    if field == "node_rank":
        asked.server_args.node_rank = 1
    else:
        asked.dynamo_args.diffusion_worker = True
    with pytest.raises(BadArguments, match="snapshot mode"):
        SnapshotRole().prepare(asked)


@pytest.mark.parametrize(
    ("newer_gms", "overrides", "tags"),
    [
        ("", {"enable_forward_pass_metrics": False, "enable_memory_saver": True}, ["kv_cache"]),
        ("true", {"enable_forward_pass_metrics": False}, None),
    ],
)
def test_what_memory_a_frozen_engine_lets_go_of(
    newer_gms: str,
    overrides: dict[str, Any],
    tags: list[str] | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_GMS_USE_V1", newer_gms)
    assert snapshot._memory_plan() == (overrides, tags)


def test_bounds_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    args = SimpleNamespace(disaggregation_mode="null")
    monkeypatch.delenv("SGLANG_WARMUP_TIMEOUT", raising=False)
    assert snapshot.warm_up_bound(args) == 600.0
    args.disaggregation_mode = "prefill"
    assert snapshot.warm_up_bound(args) == 1800.0
    monkeypatch.setenv("SGLANG_WARMUP_TIMEOUT", "7")
    assert snapshot.warm_up_bound(args) == 7.0


@pytest.mark.timeout(120)
def test_a_standby_sleeps_and_a_signal_ends_it(folder: Path) -> None:
    """R16: no signal of ours stays blocked in it, and no helper of ours beside it."""
    environment = {**os.environ, "SNAPSHOT_RESTORE_STANDBY": "1", "DYN_NAMESPACE": "new"}
    # Not even what can't be parsed is looked at.
    command = [sys.executable, "-m", "trio_worker", "--no-such-flag"]
    with subprocess.Popen(command, env=environment) as standby:
        try:
            proc = Path(f"/proc/{standby.pid}")
            while (proc / "comm").read_text() != "sleep\n":
                assert standby.poll() is None
            context = json.loads((folder / "restore-context.json").read_text())
            assert context["env"]["DYN_NAMESPACE"] == "new"
            blocked = int(re.search(r"SigBlk:\s*(\w+)", (proc / "status").read_text())[1], 16)
            assert not blocked & (1 << (signal.SIGTERM - 1))
            assert (proc / "task" / proc.name / "children").read_text().strip() == ""
            standby.terminate()
            assert standby.wait(60) == -signal.SIGTERM
        finally:
            standby.kill()
