# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""etcd, NATS and ports, looked at before the runtime does."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from compat.reachable import (
    Service,
    check_engine_ports,
    check_ports,
    describe,
    patience_of_runtime,
    services,
    wait_reachable,
)
from compat.runtime_errors import PortUnavailable, ServiceUnreachable

VARIABLES = (
    "DYN_SYSTEM_HOST",
    "DYN_SYSTEM_PORT",
    "DYN_TCP_RPC_HOST",
    "DYN_TCP_RPC_PORT",
    "ETCD_ENDPOINTS",
    "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS",
    "NATS_SERVER",
    "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class FakeNetwork:
    """Connections to `up` succeed, all others are refused, at once."""

    def __init__(self) -> None:
        self.up: set[tuple[str, int]] = set()
        self.asked: list[tuple[str, int]] = []


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    fake = FakeNetwork()

    async def open_tcp_stream(host: str, port: int) -> trio.abc.Stream:
        fake.asked.append((host, port))
        await trio.lowlevel.checkpoint()
        if (host, port) not in fake.up:
            raise OSError("all attempts to connect failed") from ExceptionGroup(
                "multiple", [ConnectionRefusedError(111, "Connection refused")]
            )
        return trio.testing.memory_stream_pair()[0]

    monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)
    return fake


@pytest.mark.parametrize(
    ("planes", "environment", "expected"),
    [
        (("mem", "tcp", None), {}, ""),
        (("file", "tcp", "zmq"), {"ETCD_ENDPOINTS": "http://a:1"}, ""),
        (("etcd", "tcp", None), {}, "etcd at localhost:2379"),
        (("etcd", "tcp", None), {"ETCD_ENDPOINTS": ""}, "etcd at localhost:2379"),
        (
            ("etcd", "nats", None),
            {"ETCD_ENDPOINTS": "http://a:1,https://b , c:3", "NATS_SERVER": "nats://u:p@n:4"},
            "etcd at a:1, b:2379, c:3 and NATS at n:4",
        ),
        (("file", "tcp", "nats"), {}, "NATS at localhost:4222"),
    ],
)
def test_services_are_found_where_the_runtime_finds_them(
    planes: tuple[str, str, str | None],
    environment: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert describe(services(*planes)) == expected


def test_passwords_stay_out_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", "nats://user:secret@host:4222")
    assert "secret" not in describe(services("mem", "nats", None))


def test_patience_is_the_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = services("etcd", "tcp", None)[0]
    assert etcd.patience == 120
    monkeypatch.setenv("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", "7")
    assert etcd.patience == 7
    monkeypatch.setenv("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", "soon")
    assert etcd.patience == 120


def test_patience_of_the_runtime_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = services("etcd", "nats", None)
    etcd, nats = (service.patience_env for service in found)
    monkeypatch.setenv(etcd, "60")
    with patience_of_runtime(found, 2):
        assert (os.environ[etcd], os.environ[nats]) == ("2", "2")
    assert os.environ[etcd] == "60"
    assert nats not in os.environ


async def test_one_address_is_enough(
    network: FakeNetwork, autojump_clock: trio.testing.MockClock
) -> None:
    network.up.add(("b", 2))
    began = trio.current_time()
    await wait_reachable(Service("etcd", (("a", 1), ("b", 2)), "X"), began + 10)
    assert network.asked == [("a", 1), ("b", 2)]
    assert trio.current_time() == began


async def test_a_service_that_comes_up_late_is_waited_for(
    network: FakeNetwork, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    began = trio.current_time()

    async def come_up() -> None:
        await trio.sleep(6.5)
        network.up.add(("a", 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_up)
        await wait_reachable(Service("etcd", (("a", 1),), "X"), began + 120)
    assert trio.current_time() - began == pytest.approx(7)
    assert [record.getMessage() for record in caplog.records] == [
        "etcd at a:1 can't be reached yet (Connection refused); 120 s left",
        "etcd at a:1 can't be reached yet (Connection refused); 119 s left",
        "etcd at a:1 can't be reached yet (Connection refused); 117 s left",
    ]


async def test_a_service_that_stays_away_is_named_with_the_cause(
    network: FakeNetwork, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    with pytest.raises(
        ServiceUnreachable, match=r"^NATS at n:4222 can't be reached: Connection refused$"
    ):
        await wait_reachable(Service("NATS", (("n", 4222),), "X"), began + 9)
    assert trio.current_time() - began == pytest.approx(9)


async def test_a_service_that_never_answers_is_not_waited_for_in_vain(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    began = trio.current_time()
    with pytest.raises(ServiceUnreachable, match="no answer"):
        await wait_reachable(Service("etcd", (("a", 1),), "X"), began + 5)
    assert trio.current_time() - began <= 11


async def test_an_address_that_makes_no_sense_is_left_to_the_runtime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    await wait_reachable(Service("etcd", (), "X"), trio.current_time())


async def test_the_words_of_a_real_refusal() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        service = Service("etcd", (("127.0.0.1", port),), "X")
        with pytest.raises(ServiceUnreachable, match="can't be reached: Connection refused"):
            await wait_reachable(service, trio.current_time())


# ---- ports ----


@pytest.mark.parametrize("kind", ["SYSTEM", "TCP_RPC"])
def test_a_taken_port_is_named_by_its_variable(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(f"DYN_{kind}_HOST", "127.0.0.1")
        monkeypatch.setenv(f"DYN_{kind}_PORT", str(port))
        with pytest.raises(
            PortUnavailable,
            match=f"^DYN_{kind}_PORT={port}: can't listen on 127.0.0.1:{port}: Address already in",
        ):
            check_ports()
    check_ports()


def test_a_port_is_still_free_after_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("DYN_SYSTEM_HOST", "127.0.0.1")
    monkeypatch.setenv("DYN_SYSTEM_PORT", str(port))
    check_ports()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_an_address_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "192.0.2.1")
    monkeypatch.setenv("DYN_TCP_RPC_PORT", "6000")
    with pytest.raises(PortUnavailable, match="Cannot assign requested address"):
        check_ports()


@pytest.mark.parametrize("port", ["", "-1", "0", "x", "99999"])
def test_ports_that_are_not_fixed_are_the_runtimes_affair(
    port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_SYSTEM_PORT", port)
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
    monkeypatch.setenv("DYN_TCP_RPC_PORT", port)
    check_ports()


def test_a_request_port_without_a_host_is_not_guessed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("DYN_TCP_RPC_PORT", str(taken.getsockname()[1]))
        check_ports()


def test_a_host_that_does_not_resolve_is_left_to_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_SYSTEM_HOST", "no.such.host.invalid")
    monkeypatch.setenv("DYN_SYSTEM_PORT", "6000")
    check_ports()


@pytest.mark.parametrize("flag", ["nccl_port", "dist_init_addr"])
def test_a_rendezvous_port_that_is_taken_is_named_by_its_flag(flag: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        value = port if flag == "nccl_port" else f"head:{port}"
        name = f"--{flag.replace('_', '-')} {value}"
        with pytest.raises(PortUnavailable, match=f"^{name}: can't listen on"):
            check_engine_ports(SimpleNamespace(**{flag: value}))
        # Rank 0 is elsewhere.
        check_engine_ports(SimpleNamespace(node_rank=1, **{flag: value}))
    check_engine_ports(SimpleNamespace(**{flag: value}))


def test_engine_ports_that_sglang_chooses_are_not_looked_at() -> None:
    check_engine_ports(SimpleNamespace(node_rank=0, nccl_port=None, dist_init_addr=None))
    check_engine_ports(SimpleNamespace())
