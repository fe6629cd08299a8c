# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Whether the runtime will find what it needs, asked before it does.

``DistributedRuntime(...)`` waits for etcd and NATS by itself, 120 s by default, but it blocks its
thread *with the GIL held* all the while: no signal is answered, in no thread (seen). So the
waiting is done here, and the constructor is called once somebody listens.

Of ports it reports one too late, after the model load, and the other not at all.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from compat.runtime_errors import PortUnavailable, ServiceUnreachable

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 120.0
"""The runtime's own default for both services."""

CONNECT_S: Final = 5.0

_TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


@dataclass(frozen=True)
class Service:
    """etcd or NATS, as the runtime finds it in the environment."""

    name: str
    addresses: tuple[tuple[str, int], ...]
    patience_env: str
    """How long the runtime waits for it at start, in whole seconds."""

    @property
    def patience(self) -> float:
        """Seconds that the operator gives it to come up."""
        try:
            return float(os.environ[self.patience_env])
        except (KeyError, ValueError):
            return PATIENCE_S

    def __str__(self) -> str:
        return f"{self.name} at {', '.join(f'{host}:{port}' for host, port in self.addresses)}"


def services(discovery_backend: str, request_plane: str, event_plane: str | None) -> list[Service]:
    """Neither flavour. What the runtime will connect to; defaults are those of the Rust side."""
    found = []
    if discovery_backend == "etcd":
        urls = os.environ.get("ETCD_ENDPOINTS") or "http://localhost:2379"
        found.append(_service("etcd", urls, 2379, "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS"))
    if "nats" in (request_plane, event_plane):
        urls = os.environ.get("NATS_SERVER") or "nats://localhost:4222"
        found.append(_service("NATS", urls, 4222, "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS"))
    return found


def _service(name: str, urls: str, default_port: int, patience_env: str) -> Service:
    addresses = []
    for url in urls.split(","):
        text = url.strip()
        parts = urlsplit(text if "//" in text else f"//{text}")
        if parts.hostname:
            addresses.append((parts.hostname, parts.port or default_port))
    return Service(name, tuple(addresses), patience_env)


async def wait_reachable(service: Service, deadline: float) -> None:
    """Trio. Until one address of `service` takes a connection. Raises `ServiceUnreachable`."""
    if not service.addresses:
        return
    for delay in itertools.chain((1.0, 2.0, 4.0), itertools.repeat(5.0)):
        cause = ""
        for host, port in service.addresses:
            try:
                with trio.fail_after(CONNECT_S):
                    stream = await trio.open_tcp_stream(host, port)
            except (OSError, trio.TooSlowError) as error:
                cause = _cause_of(error)
            else:
                await trio.aclose_forcefully(stream)
                return
        left = deadline - trio.current_time()
        if left <= 0:
            raise ServiceUnreachable(f"{service} can't be reached: {cause}")
        logger.warning("%s can't be reached yet (%s); %.0f s left", service, cause, left)
        await trio.sleep(min(delay, left))


def _cause_of(error: BaseException) -> str:
    """The words of the operating system, which Trio wraps twice."""
    if isinstance(error, trio.TooSlowError):
        return "no answer"
    cause: BaseException = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return str(cause)


@contextmanager
def patience_of_runtime(found: Sequence[Service], seconds: int) -> Iterator[None]:
    """Neither flavour. For the block, the runtime itself waits `seconds` for its services."""
    before = {service.patience_env: os.environ.get(service.patience_env) for service in found}
    os.environ.update(dict.fromkeys(before, str(seconds)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_ports() -> None:
    """Neither flavour. Raise `PortUnavailable` for a fixed port that the runtime can't have.

    It would only log that its status server did not start, and meet a taken request port after
    the model has been loaded.
    """
    for port_name, host_name, default_host in (
        ("DYN_SYSTEM_PORT", "DYN_SYSTEM_HOST", "0.0.0.0"),
        # Without a host the runtime picks an address by rules of its own.
        ("DYN_TCP_RPC_PORT", "DYN_TCP_RPC_HOST", None),
    ):
        host = os.environ.get(host_name) or default_host
        text = os.environ.get(port_name, "")
        if host is not None and text.isdecimal() and 0 < int(text) < 65536:
            _check_port(f"{port_name}={text}", host, int(text))


def check_engine_ports(server_args: Any) -> None:
    """Neither flavour. Raise `PortUnavailable` for a port that SGLang's schedulers can't have.

    They would tell only in a traceback of their own, after their imports. `server_args` are
    SGLang's; the rendezvous listens on rank 0 (``--dist-init-addr``, else ``--nccl-port``).
    """
    if getattr(server_args, "node_rank", 0):
        return
    _, _, dist_port = (getattr(server_args, "dist_init_addr", None) or "").rpartition(":")
    nccl_port = getattr(server_args, "nccl_port", None)
    if dist_port.isdecimal():
        _check_port(f"--dist-init-addr {server_args.dist_init_addr}", "0.0.0.0", int(dist_port))
    elif nccl_port:
        _check_port(f"--nccl-port {nccl_port}", "0.0.0.0", nccl_port)


def _check_port(name: str, host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As Rust's listener does: a port whose last connections still linger is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno in _TAKEN:
            raise PortUnavailable(
                f"{name}: can't listen on {host}:{port}: {error.strerror}"
            ) from None
        logger.debug("Not checked: %s: %s", name, error)


def describe(found: Sequence[Service]) -> str:
    """Neither flavour. The services in words."""
    return " and ".join(map(str, found))


def asks_services(dynamo_args: Any) -> list[Service]:
    """Neither flavour. `services` of a Dynamo config."""
    return services(
        dynamo_args.discovery_backend, dynamo_args.request_plane, dynamo_args.event_plane
    )
