# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Dynamo's runtime seen from Trio: endpoints, registration, withdrawal, none waited for in vain.

What the Rust side returns are asyncio futures. They may never resolve (frozen discovery), and a
serve future may resolve unasked: a lost lease ends it with a plain result. Every wait here can be
left (`compat.futures`), and every serve future is watched.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import trio
from dynamo.common.utils.runtime import create_runtime

from compat.futures import settle, until_done, within
from compat.loop import WorkerLoop
from compat.reachable import (
    asks_services,
    check_ports,
    describe,
    patience_of_runtime,
    wait_reachable,
)
from compat.runtime_errors import (
    RegistrationRefused,
    RuntimeTooSlow,
    RuntimeTrouble,
    ServeFailed,
    ServiceUnreachable,
    WithdrawalFailed,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_S: Final = 30.0
"""Seconds for one call of the runtime. A frozen etcd makes it raise after 25 s by itself."""

REGISTER_S: Final = 120.0
"""Seconds for a model's registration, which reads its files."""

INSTANCES_NOTICE_S: Final = 60.0
"""Seconds between two lines about a worker that we wait for."""

YOUNG_S: Final = 5.0
"""Unregistering an endpoint that has been served for less is retried: it may not be there yet."""

RETRY_S: Final = (0.1, 0.2, 0.4, 0.8)

GONE_POLL_S: Final = 0.05

DRAIN_S: Final = 30.0
"""Seconds for the runtime's own drain when it stops by itself, for a lost lease."""

DRAIN_ENV: Final = "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"
"""The runtime's own wait for requests in flight; 900 s unless set. Read when it shuts down."""


@dataclass(eq=False)
class _Served:
    """One endpoint that is served."""

    name: str
    endpoint: Any
    future: asyncio.Future[Any]
    advertised: bool = True
    """Whether discovery shows it, as far as we know; serving registers it."""
    since: float = field(default_factory=trio.current_time)

    def note(self, change: asyncio.Future[Any], wanted: bool) -> None:
        """A change in discovery is over. What may be there is there, as far as we know."""
        if wanted or (not change.cancelled() and change.exception() is None):
            self.advertised = wanted


class WorkerRuntime:
    """Dynamo's runtime of one worker, with its endpoints. Lives on the Trio thread only.

    `trio_worker.shutdown.Runtime` is what the shutdown plan sees of it.
    """

    def __init__(self, runtime: Any, discovery_backend: str) -> None:
        self.runtime = runtime
        """``dynamo.runtime.DistributedRuntime``."""
        self.lost = trio.Event()
        """Set when an endpoint stopped unasked: its lease is lost, or it never was served."""
        self.loss = ""
        """Why, for the log."""
        self.registration_refused = False
        """Set for good by the withdrawal (rule 123)."""
        self._discovery_backend = discovery_backend
        self._names: list[tuple[Any, str]] = []
        self._served: list[_Served] = []
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._closing = False

    # ---- calls ----

    def endpoint(self, path: str) -> Any:
        """Trio. Dynamo's endpoint ``namespace.component.endpoint``. Raises ``ValueError``."""
        endpoint = self.runtime.endpoint(path)
        self._names.append((endpoint, path))
        return endpoint

    async def call(
        self, function: Callable[..., Awaitable[T]], *args: Any, seconds: float = CALL_S
    ) -> T:
        """Trio. One call of Rust, bounded. Raises what it raises, or `RuntimeTooSlow`."""
        name = getattr(function, "__name__", repr(function))
        return await within(seconds, lambda: function(*args), name)

    async def client(self, path: str) -> Any:
        """Trio. Dynamo's client of another worker's endpoint; see `call` and `endpoint`."""
        return await self.call(self.runtime.endpoint(path).client)

    async def wait_instances(self, client: Any, path: str) -> None:
        """Trio. Until somebody serves what `client` calls; says so in the log while it waits.

        Without a bound: whoever serves it may be loading its model. A stop cancels it.
        """
        while True:
            with trio.move_on_after(INSTANCES_NOTICE_S):
                await settle(client.wait_for_instances())
                return
            logger.warning("Nobody serves %s yet; waiting", path)

    # ---- serving ----

    def serve(
        self,
        endpoint: Any,
        handler: Callable[..., Any],
        *,
        graceful_shutdown: bool = True,
        metrics_labels: Sequence[tuple[str, str]] | None = None,
        health_check_payload: dict[str, Any] | None = None,
    ) -> None:
        """Trio. Serve `endpoint` with `handler` (asyncio), which also registers its instance.

        Returns at once; a failure shows as `lost`, and so does an end that nobody asked for.
        Raises `RegistrationRefused` after the withdrawal.
        """
        self._check_registration()
        future = asyncio.ensure_future(
            endpoint.serve_endpoint(
                handler,
                graceful_shutdown=graceful_shutdown,
                metrics_labels=None if metrics_labels is None else list(metrics_labels),
                health_check_payload=health_check_payload,
            )
        )
        name = next((path for known, path in self._names if known is endpoint), repr(endpoint))
        served = _Served(name, endpoint, future)
        self._served.append(served)
        future.add_done_callback(lambda _future: self._end_of(served))

    def _end_of(self, served: _Served) -> None:
        """asyncio. A serve future has resolved."""
        future = served.future
        error = None if future.cancelled() else future.exception()
        if self._closing:
            if error is not None:
                logger.warning("Endpoint %s stopped with %r", served.name, error)
            return
        served.advertised = False
        if not self.lost.is_set():
            cause = "stopped unasked" if error is None else f"can't be served: {error}"
            self.loss = f"endpoint {served.name} {cause}"
            self.lost.set()

    # ---- registration ----

    async def register(
        self, registration: Callable[[], Awaitable[T]], *, seconds: float = REGISTER_S
    ) -> T:
        """Trio. Run one registration (asyncio; a model's, say) to its end.

        Raises what it raises, `RuntimeTooSlow`; `ServeFailed` when an endpoint was lost meanwhile;
        `RegistrationRefused` once the worker is withdrawn, be it meanwhile.
        """
        self._check_registration()
        task = self._track(asyncio.ensure_future(registration()))
        ended = trio.Event()
        task.add_done_callback(lambda _task: ended.set())
        try:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    for event in (ended, self.lost):
                        nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
        finally:
            # Not awaited then: it is left behind, and tracked until it ends.
            task.cancel()
        self._check_registration()
        if self.lost.is_set():
            raise ServeFailed(self.loss)
        if not ended.is_set():
            raise RuntimeTooSlow(f"registration: no answer for {seconds:g} s")
        return await settle(task)

    def serves(self, endpoint: Any) -> bool:
        """Trio or asyncio. Whether `endpoint` is being served."""
        return any(one.endpoint is endpoint for one in self._served)

    async def advertise(self, endpoint: Any, wanted: bool) -> None:
        """asyncio. Show a served endpoint in discovery, or hide it (while paused, say).

        Does nothing where nothing changes, since file discovery raises on unregistering twice, and
        shows nothing after the withdrawal (rule 123). Raises what the runtime raises.
        """
        served = next((one for one in self._served if one.endpoint is endpoint), None)
        if wanted and self.registration_refused:
            return
        if served is not None and served.advertised == wanted:
            return
        change = asyncio.ensure_future(
            endpoint.register_endpoint_instance()
            if wanted
            else endpoint.unregister_endpoint_instance()
        )
        if served is not None:
            change.add_done_callback(lambda _change: served.note(change, wanted))
        await self._track(change)

    def _track(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        def forget(_future: asyncio.Future[T]) -> None:
            self._in_flight.discard(future)
            if not future.cancelled() and (error := future.exception()) is not None:
                # Seen here, for it may be that nobody waits for it any more.
                logger.debug("Change in discovery failed: %r", error)

        self._in_flight.add(future)
        future.add_done_callback(forget)
        return future

    def _check_registration(self) -> None:
        if self.registration_refused:
            raise RegistrationRefused("the worker is shutting down: nothing registers any more")

    def refuse_registration(self) -> None:
        """Trio. From here on nothing registers (rule 123)."""
        self.registration_refused = True

    async def withdraw(self) -> None:
        """Trio. Unregister every endpoint; what registers right now is awaited, then undone.

        Bounded by its caller. Raises `WithdrawalFailed`.
        """
        self.refuse_registration()
        failed = await self._unregister_all()
        while self._in_flight:
            await until_done(next(iter(self._in_flight)))
            failed = await self._unregister_all()
        if failed:
            raise WithdrawalFailed(f"still in discovery: {', '.join(failed)}")

    async def _unregister_all(self) -> list[str]:
        """Trio. Names of those that could not be unregistered."""
        shown = [served for served in self._served if served.advertised]
        async with trio.open_nursery() as nursery:
            for served in shown:
                nursery.start_soon(self._unregister, served)
        return [served.name for served in shown if served.advertised]

    async def _unregister(self, served: _Served) -> None:
        for delay in (*RETRY_S, None):
            try:
                await within(CALL_S, served.endpoint.unregister_endpoint_instance, served.name)
            except Exception as error:
                if delay is None or trio.current_time() - served.since >= YOUNG_S:
                    logger.warning(
                        "Failed to unregister endpoint instance from discovery: %s", error
                    )
                    return
                await trio.sleep(delay)
            else:
                served.advertised = False
                return

    # ---- the end ----

    def shutdown(self, drain_seconds: float) -> None:
        """Trio. Tell the runtime to stop; its own drain gets `drain_seconds`. Idempotent."""
        self.refuse_registration()
        bound_drain(drain_seconds)
        if not self._closing:
            self._closing = True
            self.runtime.shutdown()

    async def wait_served(self) -> None:
        """Trio. Until every serve future has resolved; with a frozen discovery they never do."""
        for served in self._served:
            await until_done(served.future)

    async def wait_gone(self) -> None:
        """Trio. Until discovery shows nothing of ours, where that can be seen: in files.

        etcd takes everything back with the lease, which the runtime's shutdown revokes.
        """
        if self._discovery_backend != "file":
            return
        instances = {f"{served.endpoint.connection_id():x}" for served in self._served}
        while any(map(_files_of, instances)):  # files tell nobody
            await trio.sleep(GONE_POLL_S)


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _files_of(instance: str) -> list[Path]:
    """What file discovery holds of one instance (``v1/<bucket>/<endpoint>/<instance in hex>``)."""
    root = os.environ.get("DYN_FILE_KV") or Path(tempfile.gettempdir(), "dynamo_store_kv")
    # Slashes of keys are escaped in file names; take both spellings.
    return [path for path in Path(root).glob("v1/**/*") if path.name.endswith(instance)]


# ---- opening ----


@asynccontextmanager
async def open_runtime(
    loop: WorkerLoop, dynamo_args: Any, *, drain_seconds: float = DRAIN_S
) -> AsyncIterator[WorkerRuntime]:
    """Trio. Connect to discovery and planes as ``dynamo.sglang`` does, once they can be reached.

    `dynamo_args` is Dynamo's config; addresses come from its environment variables.
    `drain_seconds`: what the runtime's own drain may take should it lose its lease. Leaving tells
    the runtime to stop. Raises `RuntimeTrouble`.
    """
    assert asyncio.get_running_loop() is loop
    bound_drain(drain_seconds)
    check_ports()
    worker = WorkerRuntime(await _connect(dynamo_args), dynamo_args.discovery_backend)
    try:
        yield worker
    finally:
        worker.shutdown(_drain_bound())


def bound_drain(seconds: float) -> None:
    """Neither flavour. The runtime's own drain may take `seconds` at most (whole ones, from 1).

    An operator's smaller value stays.
    """
    os.environ[DRAIN_ENV] = str(max(1, int(min(seconds, _drain_bound()))))


def _drain_bound() -> float:
    try:
        return float(os.environ[DRAIN_ENV])
    except (KeyError, ValueError):
        return 900.0


async def _connect(dynamo_args: Any) -> Any:
    """Trio. ``DistributedRuntime``, built in short attempts (see `compat.reachable`)."""
    services = asks_services(dynamo_args)
    deadline = trio.current_time() + max((one.patience for one in services), default=0.0)
    for patience in itertools.chain((1, 2, 4), itertools.repeat(8)):
        for service in services:
            await wait_reachable(service, deadline)
        # A stop that arrived meanwhile is seen here, not after the next attempt.
        await trio.lowlevel.checkpoint()
        try:
            with patience_of_runtime(services, patience):
                runtime, _loop = create_runtime(
                    discovery_backend=dynamo_args.discovery_backend,
                    request_plane=dynamo_args.request_plane,
                    event_plane=dynamo_args.event_plane,
                    response_plane=dynamo_args.response_plane,
                )
            return runtime
        except Exception as error:
            # Rust raises bare `Exception`s: only the text tells them apart.
            if "startup connection timed out" not in str(error):
                raise RuntimeTrouble(
                    f"Dynamo's runtime does not start ({dynamo_args.discovery_backend} "
                    f"discovery, {dynamo_args.request_plane} requests): {error}"
                ) from error
            if trio.current_time() >= deadline:
                raise ServiceUnreachable(
                    f"{describe(services)}: connected, but no answer: {error}"
                ) from None
            logger.warning("%s; trying again", error)
    raise AssertionError("endless")
