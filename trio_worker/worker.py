# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The worker as a tree: read `_live` from top to bottom.

    trio.run(main)
    └─ process scope          what asks for a stop; the plan; one total deadline
       └─ open_loop()         asyncio on Trio
          └─ early            what must exist before the first connection; for most roles nothing
             └─ runtime       closed last
                └─ engine     SGLang and its children
                   ├─ aborts     ordered aborts and their retries
                   ├─ services   metrics, events, pause followers, watchers
                   └─ serving    request tasks; the children of a gateway

A stop never cancels this tree: it starts the plan (`trio_worker.shutdown`), which moves deadlines,
closes part after part, and cancels the process scope when nothing of worth is left in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from compat.host import EngineHost
from compat.loop import WorkerLoop, open_loop
from compat.processes import reap_orphans
from compat.runtime import WorkerRuntime, open_runtime
from compat.senders import Senders
from compat.signals import StopSignals
from trio_worker.branch import Branch, open_branch
from trio_worker.cli import WorkerOptions, role_of
from trio_worker.errors import explain
from trio_worker.garbage import Garbage
from trio_worker.instruments import Instruments, model_of
from trio_worker.requests.abort import Aborts, order_is_proven
from trio_worker.requests.live import LiveRequests
from trio_worker.roles import Role
from trio_worker.shutdown import Bounds, ExitStatus, Shutdown, StopReason
from trio_worker.standin import parse_script
from trio_worker.standin.tokenizer import delay_tokenizer

logger = logging.getLogger(__name__)

LAST_RESORT_SLACK_S = 1.5
"""Seconds after the total deadline at which the signal thread ends the process."""


@dataclass
class Worker:
    """What a role finds when it begins to serve."""

    loop: WorkerLoop
    config: Any
    """``dynamo.sglang.args.Config``; its ``server_args`` are the resolved ones."""
    options: WorkerOptions
    runtime: WorkerRuntime
    engine: EngineHost
    services: Branch
    serving: Branch
    requests: LiveRequests
    senders: Senders
    shutdown: Shutdown
    garbage: Garbage
    instruments: Instruments

    @property
    def role(self) -> str:
        """By name, for whoever looks in."""
        return role_of(self.config).value

    @property
    def model(self) -> str:
        """What clients call the model."""
        return model_of(self.config)


async def main(signals: StopSignals, options: WorkerOptions, config: Any, role: Role) -> ExitStatus:
    """Trio. One worker from its first connection to its exit status; never raises."""
    shutdown = Shutdown(Bounds(total=options.shutdown_timeout), leads=role.leads)
    instruments = Instruments(signals, options, config)
    shutdown.note = instruments.recorder.note_worker
    try:
        async with open_loop() as loop:
            building, starting = trio.CancelScope(), trio.CancelScope()
            _attach(signals, shutdown, instruments.dump)
            async with trio.open_nursery() as process:
                process.start_soon(reap_orphans)
                process.start_soon(_conduct, signals, shutdown, (building, starting), process)
                with building:
                    await _live(loop, options, config, role, shutdown, starting, instruments)
        shutdown.run_deferred(loop.recorded_signal_handlers, signals.first_signal)
    except Exception as error:
        logger.exception("The worker failed outside of its tree")
        shutdown.request(StopReason.INTERNAL_ERROR, explain(error))
        shutdown.status = max(shutdown.status, ExitStatus.FAILED)
    instruments.end(shutdown.status)
    return shutdown.status


async def _live(
    loop: WorkerLoop,
    options: WorkerOptions,
    config: Any,
    role: Role,
    shutdown: Shutdown,
    starting: trio.CancelScope,
    instruments: Instruments,
) -> None:
    """Trio. The tree below the loop; each level cleans up what it built."""

    def failed(branch: str, error: BaseException) -> None:
        shutdown.request(StopReason.INTERNAL_ERROR, f"{branch}: {explain(error)}")

    instruments.stage("starting: connecting to Dynamo's runtime")
    try:
        async with (
            role.open_early(loop, config, shutdown),
            open_runtime(loop, config.dynamo_args) as runtime,
            _known_as(shutdown, "runtime", runtime),
            _stage(instruments, "starting: building the engine"),
            role.open_engine(loop, config, runtime) as engine,
            _known_as(shutdown, "engine", engine),
            open_branch("aborts", failed) as aborts,
            open_branch("services", failed) as services,
            _known_as(shutdown, "services", services),
            open_branch("serving", failed) as serving,
        ):
            if engine.resolved_server_args is not None:
                config.use_resolved_server_args(engine.resolved_server_args)
            if options.stand_in_scheduler is not None and engine.tokenizer_manager is not None:
                delay_tokenizer(engine.tokenizer_manager, parse_script(options.stand_in_scheduler))
            requests = LiveRequests(
                loop=loop,
                serving=serving.nursery,
                feeders=engine.feeders,
                aborts=Aborts(
                    engine.tokenizer_manager,
                    aborts.nursery,
                    order_is_proven=order_is_proven(config.server_args),
                ),
                tokenizer_manager=engine.tokenizer_manager,
                recorder=instruments.recorder,
            )
            shutdown.parts.requests = shutdown.parts.serving = requests
            senders = Senders()
            garbage = Garbage(options.gc_policy, lambda: requests.count)
            services.start_service(senders.watch)
            services.start_service(engine.watch_children)
            services.start_service(_watch, shutdown, engine, runtime)
            services.start_service(instruments.lag.watch)
            worker = Worker(
                loop=loop,
                config=config,
                options=options,
                runtime=runtime,
                engine=engine,
                services=services,
                serving=serving,
                requests=requests,
                senders=senders,
                shutdown=shutdown,
                garbage=garbage,
                instruments=instruments,
            )
            instruments.show(worker)
            # Before anybody is served: its first collection stops everything for a second or more.
            services.start_service(garbage.keep)
            instruments.stage("starting: registering the model")
            with starting:
                await role.serve(worker)
                instruments.stage("serving")
            await shutdown.finished.wait()
    except Exception as error:
        shutdown.request(StopReason.STARTUP_FAILED, explain(error))
        await shutdown.finished.wait()


@asynccontextmanager
async def _known_as(shutdown: Shutdown, name: str, part: Any) -> AsyncIterator[None]:
    """Trio. What the plan may shut down, for as long as it exists."""
    setattr(shutdown.parts, name, part)
    try:
        yield
    finally:
        setattr(shutdown.parts, name, None)


@asynccontextmanager
async def _stage(instruments: Instruments, what: str) -> AsyncIterator[None]:
    """Trio. Says what comes next in a chain of contexts."""
    instruments.stage(what)
    yield


def _attach(signals: StopSignals, shutdown: Shutdown, dump: Callable[[], None]) -> None:
    """Trio. From here on a signal is a request to the plan."""

    def notify(level: int) -> None:
        if level == 1:
            loading = shutdown.parts.engine is None
            reason = StopReason.STARTUP_STOPPED if loading else StopReason.SIGNAL
            asked_at = signals.first_signal_at
            ago = 0.0 if asked_at is None else time.monotonic() - asked_at
            shutdown.request(reason, ago=ago)
        else:
            shutdown.hurry()

    signals.attach(
        notify,
        engine_failed=lambda: shutdown.request(StopReason.ENGINE_DEAD, "told by SIGQUIT"),
        dump=dump,
        last_resort=shutdown.bounds.total + LAST_RESORT_SLACK_S,
    )


async def _conduct(
    signals: StopSignals,
    shutdown: Shutdown,
    scopes: tuple[trio.CancelScope, trio.CancelScope],
    process: trio.Nursery,
) -> None:
    """Trio. Wait for the first reason to stop, carry the plan out, end the tree."""
    await shutdown.requested.wait()
    if signals.first_signal is None:
        # A signal has armed it already, when it came.
        signals.arm_last_resort(
            shutdown.bounds.total + LAST_RESORT_SLACK_S, reason="the shutdown plan overran"
        )
    building, starting = scopes
    starting.cancel()
    if shutdown.reason is StopReason.STARTUP_STOPPED:
        building.cancel()
    await shutdown.run()
    process.cancel_scope.cancel()


async def _watch(shutdown: Shutdown, engine: EngineHost, runtime: WorkerRuntime) -> None:
    """Trio. A service: what ends a worker without anybody asking."""

    async def engine_death() -> None:
        await engine.died.wait()
        shutdown.request(StopReason.ENGINE_DEAD, engine.death)

    async def lease() -> None:
        await runtime.lost.wait()
        shutdown.request(StopReason.LEASE_LOST, runtime.loss)

    async with trio.open_nursery() as watchers:
        watchers.start_soon(engine_death)
        watchers.start_soon(lease)
