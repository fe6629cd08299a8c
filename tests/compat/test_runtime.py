# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The worker's runtime against a fake of the Rust side, and once against the real one."""

from __future__ import annotations

import asyncio
import os
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
import trio_asyncio

import compat.runtime
from compat.loop import WorkerLoop, open_loop
from compat.runtime import DRAIN_ENV, WorkerRuntime, bound_drain, open_runtime
from compat.runtime_errors import (
    PortUnavailable,
    RegistrationRefused,
    RuntimeTooSlow,
    RuntimeTrouble,
    ServeFailed,
    ServiceUnreachable,
    WithdrawalFailed,
)
from tests.compat.rust import FakeDistributedRuntime, FakeEndpoint, Work
from trio_worker.shutdown import Runtime

NAMES = ("ns.comp.generate", "ns.comp.load_lora", "ns.comp.clear_kv_blocks")


def config(**changes: Any) -> SimpleNamespace:
    plain = {
        "discovery_backend": "mem",
        "request_plane": "tcp",
        "event_plane": None,
        "response_plane": "tcp",
    }
    return SimpleNamespace(**{**plain, **changes})


async def handler(request: Any, context: Any = None) -> AsyncIterator[Any]:
    yield request


@asynccontextmanager
async def served(
    backend: str = "mem", names: tuple[str, ...] = NAMES
) -> AsyncIterator[tuple[WorkerRuntime, list[FakeEndpoint], WorkerLoop]]:
    """A runtime that serves `names`."""
    async with open_loop() as loop:
        fake = FakeDistributedRuntime()
        runtime = WorkerRuntime(fake, backend)
        for name in names:
            runtime.serve(runtime.endpoint(name), handler)
        yield runtime, list(fake.endpoints.values()), loop


@pytest.fixture(autouse=True)
def _clean_environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        for name in (
            DRAIN_ENV,
            "DYN_SYSTEM_PORT",
            "DYN_TCP_RPC_PORT",
            "ETCD_ENDPOINTS",
            "NATS_SERVER",
            "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS",
            "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS",
        ):
            os.environ.pop(name, None)
        yield


def test_the_plan_knows_this_runtime() -> None:
    runtime: Runtime = WorkerRuntime(None, "mem")
    assert runtime is not None


# ---- serving ----


async def test_serving_hands_everything_over(autojump_clock: trio.testing.MockClock) -> None:
    async with open_loop():
        fake = FakeDistributedRuntime()
        runtime = WorkerRuntime(fake, "mem")
        endpoint = runtime.endpoint(NAMES[0])
        runtime.serve(
            endpoint,
            handler,
            graceful_shutdown=False,
            metrics_labels=(("model", "m"),),
            health_check_payload={"token_ids": [1]},
        )
        assert endpoint.served_with == {
            "handler": handler,
            "graceful_shutdown": False,
            "metrics_labels": [("model", "m")],
            "health_check_payload": {"token_ids": [1]},
        }


async def test_an_endpoint_that_stops_unasked_is_a_loss() -> None:
    async with served() as (runtime, endpoints, _):
        assert not runtime.lost.is_set()
        endpoints[2].serving[0].resolve_from_thread()
        with trio.fail_after(5):
            await runtime.lost.wait()
        assert runtime.loss == "endpoint ns.comp.clear_kv_blocks stopped unasked"


async def test_an_endpoint_that_cannot_be_served_says_why() -> None:
    async with served() as (runtime, endpoints, loop):
        endpoints[0].serving[0].resolve_from_thread(Exception("Address already in use"))
        endpoints[1].serving[0].resolve_from_thread(Exception("Address already in use"))
        with trio.fail_after(5):
            await runtime.lost.wait()
            await runtime.call(lambda: Work().resolve_from_thread().future)
        assert "can't be served: Address already in use" in runtime.loss
        assert loop.unhandled_errors == 0


async def test_an_asked_stop_is_no_loss(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as (runtime, _, _):
        runtime.runtime.hangs = True
        runtime.shutdown(2.0)
        runtime.shutdown(2.0)
        assert runtime.runtime.shutdowns == 1
        runtime.runtime.endpoints[NAMES[0]].serving[0].resolve()
        runtime.runtime.endpoints[NAMES[1]].serving[0].resolve(Exception("stopped oddly"))
        with trio.move_on_after(3) as bound:
            await runtime.wait_served()
        assert bound.cancelled_caught  # the third one hangs
        runtime.runtime.endpoints[NAMES[2]].serving[0].resolve()
        await runtime.wait_served()
        assert not runtime.lost.is_set()


async def test_shutdown_from_another_thread_ends_the_wait() -> None:
    async with served() as (runtime, _, _):
        runtime.shutdown(2.0)
        with trio.fail_after(5):
            await runtime.wait_served()


async def test_nothing_served_is_served_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with served(names=()) as (runtime, _, _):
        await runtime.withdraw()
        runtime.shutdown(1.0)
        await runtime.wait_served()
        await runtime.wait_gone()


# ---- calls ----


async def test_calls_have_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as (runtime, _, _):

        def first_token_source(kind: str) -> asyncio.Future[Any]:
            return Work().future

        with pytest.raises(RuntimeTooSlow, match=r"first_token_source: no answer for 30 s"):
            await runtime.call(first_token_source, "decode")
        assert await runtime.call(lambda: Work().resolve_after(29, "late").future) == "late"


async def test_a_bad_path_is_the_callers_error(autojump_clock: trio.testing.MockClock) -> None:
    async with open_loop():
        with pytest.raises(ValueError, match="Invalid endpoint"):
            WorkerRuntime(FakeDistributedRuntime(), "mem").endpoint("a.b")


# ---- withdrawal ----


async def test_withdrawal_unregisters_all_endpoints_at_the_same_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, _):
        for endpoint in endpoints:
            endpoint.on_unregister = lambda work: work.resolve_after(0.5)
        began = trio.current_time()
        await runtime.withdraw()
        assert trio.current_time() - began == pytest.approx(0.5)
        assert not any(endpoint.advertised for endpoint in endpoints)
        await runtime.withdraw()
        assert [endpoint.calls.count("unregister") for endpoint in endpoints] == [1, 1, 1]


async def test_nothing_registers_after_the_withdrawal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    registered = False

    async def register_model() -> None:
        nonlocal registered
        registered = True

    async with served() as (runtime, endpoints, _):
        await runtime.withdraw()
        with pytest.raises(RegistrationRefused):
            await runtime.register(register_model)
        with pytest.raises(RegistrationRefused):
            runtime.serve(endpoints[0], handler)
        await trio_asyncio.aio_as_trio(runtime.advertise)(endpoints[0], True)
        assert not registered
        assert [endpoint.advertised for endpoint in endpoints] == [False] * 3
        assert "register" not in endpoints[0].calls


async def test_a_registration_in_flight_is_awaited_then_undone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, _):
        await trio_asyncio.aio_as_trio(runtime.advertise)(endpoints[0], False)
        endpoints[0].on_register = lambda work: work.resolve_after(1.0)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio_asyncio.aio_as_trio(runtime.advertise), endpoints[0], True)
            await trio.sleep(0.25)
            await runtime.withdraw()
        assert trio.current_time() - began == pytest.approx(1.0)
        assert not endpoints[0].advertised
        assert endpoints[0].calls[-1] == "unregister"


async def test_a_model_registration_in_flight_ends_as_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def register_model() -> str:
        await asyncio.sleep(1.0)
        return "registered"

    async with served() as (runtime, endpoints, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.withdraw)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RegistrationRefused):
                await runtime.register(register_model)

        assert not endpoints[0].advertised

    async with served() as (runtime, _, _), trio.open_nursery() as nursery:

        async def withdraw_meanwhile() -> None:
            await trio.sleep(0.5)
            await runtime.withdraw()

        nursery.start_soon(withdraw_meanwhile)
        began = trio.current_time()
        with pytest.raises(RegistrationRefused):
            await runtime.register(register_model)
        assert trio.current_time() - began == pytest.approx(1.0)


async def test_an_instance_that_is_not_there_yet_is_unregistered_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Serving registers in its own time; unregistering before that fails."""
    async with served() as (runtime, endpoints, _):

        def too_early(work: Work) -> None:
            endpoints[0].on_unregister = Work.resolve
            work.resolve(Exception("Unable to unregister service for discovery"))

        endpoints[0].on_unregister = too_early
        await runtime.withdraw()
        assert endpoints[0].calls.count("unregister") == 2
        assert not endpoints[0].advertised


async def test_a_withdrawal_that_fails_names_what_is_left(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (runtime, endpoints, _):
        await trio.sleep(compat.runtime.YOUNG_S)
        endpoints[1].on_unregister = lambda work: work.resolve(Exception("discovery is gone"))
        with pytest.raises(WithdrawalFailed, match=r"^still in discovery: ns\.comp\.load_lora$"):
            await runtime.withdraw()
        assert endpoints[1].calls.count("unregister") == 1
        assert [endpoint.advertised for endpoint in endpoints] == [False, True, False]
    assert "Failed to unregister endpoint instance from discovery: discovery is gone" in caplog.text


async def test_a_call_that_raises_at_once_is_a_failure_like_any_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, _):
        await trio.sleep(compat.runtime.YOUNG_S)

        def broken() -> asyncio.Future[Any]:
            raise RuntimeError("sync")

        endpoints[0].unregister_endpoint_instance = broken  # type: ignore[method-assign]
        with pytest.raises(WithdrawalFailed):
            await runtime.withdraw()
        assert not endpoints[1].advertised


async def test_a_frozen_discovery_holds_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as (runtime, endpoints, _):
        hanging: list[Work] = []
        endpoints[0].on_unregister = hanging.append
        began = trio.current_time()
        with trio.move_on_after(2.0):
            await runtime.withdraw()
        assert trio.current_time() - began == pytest.approx(2.0)
        await trio.testing.wait_all_tasks_blocked()
        assert hanging[0].cancelled
        assert not endpoints[1].advertised


async def test_an_endpoint_that_is_lost_is_not_unregistered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, _):
        endpoints[0].serving[0].resolve()
        await runtime.lost.wait()
        await runtime.withdraw()
        assert "unregister" not in endpoints[0].calls


# ---- pauses ----


async def test_discovery_follows_pauses_without_doing_anything_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, _):
        advertise = trio_asyncio.aio_as_trio(runtime.advertise)
        for wanted in (True, False, False, True, True, False):
            await advertise(endpoints[0], wanted)
        assert endpoints[0].calls == ["serve", "unregister", "register", "unregister"]
        await runtime.withdraw()
        assert endpoints[0].calls.count("unregister") == 2
        await advertise(endpoints[0], False)
        assert endpoints[0].calls.count("unregister") == 2


async def test_a_pause_that_fails_leaves_the_endpoint_to_the_withdrawal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, loop):
        endpoints[0].on_unregister = lambda work: work.resolve(Exception("discovery is gone"))
        with pytest.raises(Exception, match="discovery is gone"):
            await trio_asyncio.aio_as_trio(runtime.advertise)(endpoints[0], False)
        endpoints[0].on_unregister = Work.resolve
        await runtime.withdraw()
        assert not endpoints[0].advertised
        assert loop.unhandled_errors == 0


# ---- registration ----


async def test_registration_returns_and_raises_what_it_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def good() -> str:
        await asyncio.sleep(1)
        return "registered"

    async def bad() -> None:
        raise RuntimeError("Model registration failed")

    async with served() as (runtime, _, loop):
        assert await runtime.register(good) == "registered"
        with pytest.raises(RuntimeError, match=r"^Model registration failed$"):
            await runtime.register(bad)
        assert loop.unhandled_errors == 0


async def test_registration_has_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as (runtime, _, _):
        work = Work()
        began = trio.current_time()
        with pytest.raises(RuntimeTooSlow, match="registration: no answer for 120 s"):
            await runtime.register(lambda: work.future)
        assert trio.current_time() - began == pytest.approx(120)
        await trio.testing.wait_all_tasks_blocked()
        assert work.cancelled
        # And nothing is left in flight that a withdrawal would wait for.
        await runtime.withdraw()
        assert trio.current_time() - began == pytest.approx(120)


async def test_registration_ends_with_the_endpoints(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, endpoints, _):
        endpoints[0].serving[0].resolve_after(1.0, Exception("Address already in use"))
        work = Work()
        with pytest.raises(ServeFailed, match="Address already in use"):
            await runtime.register(lambda: work.future)
        await trio.testing.wait_all_tasks_blocked()
        assert work.cancelled


async def test_a_cancelled_registration_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served() as (runtime, _, _):
        work = Work()
        with trio.move_on_after(1.0) as scope:
            await runtime.register(lambda: work.future)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert work.cancelled


# ---- the end ----


async def test_files_of_our_instance_are_awaited(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    folder = tmp_path / "v1" / "mdc"
    folder.mkdir(parents=True)
    (folder / "ns%2Fcomp%2Fgenerate%2Fcafe").touch()
    async with served("file", NAMES[:1]) as (runtime, _, _):
        ours = folder / "ns%2Fcomp%2Fgenerate%2Fab12"
        ours.touch()
        with trio.move_on_after(1.0) as bound:
            await runtime.wait_gone()
        assert bound.cancelled_caught
        ours.unlink()
        await runtime.wait_gone()


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        (None, 30.0, "30"),
        (None, 2.9, "2"),
        (None, 0.2, "1"),
        ("5", 30.0, "5"),
        ("60", 30.0, "30"),
        ("x", 30.0, "30"),
    ],
)
def test_the_runtimes_own_drain_fits_ours(
    before: str | None, asked: float, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        monkeypatch.setenv(DRAIN_ENV, before)
    else:
        monkeypatch.setenv(DRAIN_ENV, "900")
    bound_drain(asked)
    assert os.environ[DRAIN_ENV] == after


# ---- opening ----


@pytest.fixture
def creations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``create_runtime`` gives, one after the other: errors are raised."""
    outcomes: list[Any] = []

    def create_runtime(**_arguments: Any) -> tuple[Any, Any]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome, asyncio.get_running_loop()

    monkeypatch.setattr(compat.runtime, "create_runtime", create_runtime)
    return outcomes


async def test_open_runtime_stops_what_it_started(
    creations: list[Any], autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DRAIN_ENV, "900")
    fake = FakeDistributedRuntime()
    creations.append(fake)
    async with open_loop() as loop, open_runtime(loop, config(), drain_seconds=7) as runtime:
        assert runtime.runtime is fake
        assert os.environ[DRAIN_ENV] == "7"
        assert fake.shutdowns == 0
    assert fake.shutdowns == 1


async def test_a_runtime_that_does_not_start_says_so(
    creations: list[Any], autojump_clock: trio.testing.MockClock
) -> None:
    creations.append(Exception("POD_NAME not available from file or environment"))
    async with open_loop() as loop:
        with pytest.raises(RuntimeTrouble, match=r"\(kubernetes discovery.*POD_NAME"):
            async with open_runtime(loop, config(discovery_backend="kubernetes")):
                pass


async def test_a_service_that_listens_but_does_not_answer_is_tried_again(
    creations: list[Any], autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Exception("etcd startup connection timed out after 1 seconds")
    patiences: list[str] = []
    real = compat.runtime.patience_of_runtime

    def spy(services: Any, seconds: int) -> Any:
        patiences.append(str(seconds))
        return real(services, seconds)

    async def reachable(service: Any, deadline: float) -> None:
        await trio.sleep(0.5)

    monkeypatch.setattr(compat.runtime, "patience_of_runtime", spy)
    monkeypatch.setattr(compat.runtime, "wait_reachable", reachable)
    fake = FakeDistributedRuntime()
    creations.extend([slow, slow, slow, slow, slow, fake])
    async with open_loop() as loop:
        async with open_runtime(loop, config(discovery_backend="etcd")) as runtime:
            assert runtime.runtime is fake
        assert patiences == ["1", "2", "4", "8", "8", "8"]

        monkeypatch.setenv("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", "3")
        creations.extend([slow] * 6)
        with pytest.raises(ServiceUnreachable, match=r"etcd at localhost:2379: connected, but no"):
            async with open_runtime(loop, config(discovery_backend="etcd")):
                pass
        assert not creations
        assert os.environ["ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS"] == "3"


async def test_a_taken_port_is_found_before_anything_else(
    creations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_loop() as loop:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        monkeypatch.setenv("DYN_SYSTEM_HOST", "127.0.0.1")
        monkeypatch.setenv("DYN_SYSTEM_PORT", str(port))
        with pytest.raises(
            PortUnavailable,
            match=f"^DYN_SYSTEM_PORT={port}: can't listen on 127.0.0.1:{port}: Address already in",
        ):
            async with open_runtime(loop, config()):
                pass
        for listener in listeners:
            await listener.aclose()


# ---- the real runtime ----

CHILD = Path(__file__).with_name("runtime_child.py")


@pytest.mark.parametrize("backend", ["mem", "file"])
def test_the_real_runtime_from_serving_to_gone(backend: str, tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, str(CHILD), backend],
        env={
            **os.environ,
            "DYN_FILE_KV": str(tmp_path / "store"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_LOG": "error",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=45,
    )
    assert child.stdout.splitlines() == [
        "served and called",
        "paused",
        "in flight survives withdrawal: 20 items",
        "withdrawn",
        "stopped",
        "gone",
    ], child.stderr
    assert child.returncode == 0, child.stderr
