# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The shutdown plan of DESIGN §6: phases with bounds, under one total deadline.

Read `Shutdown.run`: it is the plan. A stop only *starts* it. Nothing that serves is cancelled by a
stop; the plan ends requests by their own deadlines and then joins what served them (DESIGN §2). It
runs shielded: whatever else falls in the process, the plan goes on, and a phase is left when its
bound has passed. What can't be left that way (a blocked thread, a loop that no longer turns) is
the signal thread's: its last resort ends the process when the total deadline and some slack are
over.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import trio

from trio_worker.recorder import events
from trio_worker.shutdown.parts import LiveRequests, Parts
from trio_worker.shutdown.paths import (
    ASKED_REASONS,
    Bounds,
    ExitStatus,
    Path,
    Phase,
    StopReason,
    path_of,
)

logger = logging.getLogger(__name__)

QUIET_S: Final = 0.3
"""Idle means: no request for this long, for what was routed before the withdrawal (rule 127)."""

PROGRESS_S: Final = 1.0
"""Seconds between two progress lines of a drain."""

_SEVERITY: Final = ("done", "failed", "overran")

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """One phase that is over."""

    phase: Phase
    seconds: float
    outcome: str
    """``done``, ``overran`` or ``failed``; of a wait, what ended it."""


@dataclass(frozen=True, slots=True)
class ShutdownView:
    """The plan for somebody who looks in from outside: plain values, safe to keep."""

    reason: str | None
    """None while nobody has asked."""
    detail: str
    active: dict[str, float]
    """Phases that run now, with their age in seconds."""
    seconds_left: float | None
    """Until the total deadline."""
    phases: tuple[PhaseRecord, ...]
    """In the order in which they ended."""
    overruns: dict[str, int]
    failures: dict[str, int]
    hurried: bool
    status: int


class Shutdown:
    """One worker's way out. Lives on the Trio thread only.

    `request` is called as often as there are reasons; `run` once, by whoever waited for
    `requested`. `parts` is filled in by whoever builds the worker.
    """

    def __init__(self, bounds: Bounds | None = None, *, leads: bool = True) -> None:
        """`leads`: False on a node that is not its group's first (no endpoints, another path)."""
        self.bounds = Bounds() if bounds is None else bounds
        self.parts = Parts()
        self.requested = trio.Event()
        self.finished = trio.Event()
        self.reason: StopReason | None = None
        self.detail = ""
        self.status = ExitStatus.ASKED
        self.records: list[PhaseRecord] = []
        self.overruns: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.note: Callable[[str, str], object] = lambda _what, _detail: None
        """Told of the reason, and of each phase when it begins and ends (the flight recorder)."""
        self._leads = leads
        self._hurried = trio.Event()
        self._withdrawn = trio.Event()
        self._active: dict[Phase, float] = {}
        self._reached = Phase.NOTICE.number
        self._path: Path = ()
        self._started = 0.0
        self._deadline = 0.0

    # ---- reasons ----

    def request(self, reason: StopReason, detail: str = "", *, ago: float = 0.0) -> None:
        """Trio. Ask for a stop. The first reason fixes the path and starts the total deadline.

        `ago`: seconds since the cause, for a signal that waited for a blocked loop. A second stop
        signal is `hurry`, not another request.
        """
        if self.reason is None:
            self.reason, self.detail = reason, detail
            self._started = trio.current_time() - ago
            self._deadline = self._started + self.bounds.total
            has_children = self.parts.children is not None
            self._path = path_of(reason, leads=self._leads, has_children=has_children)
            self.note(events.ASKED_TO_STOP, reason.value)
            if reason not in ASKED_REASONS:
                self._worsen(ExitStatus.FAILED)
            self.requested.set()
        elif self._is_consequence(reason):
            logger.info("Stopping already: %s", _because(reason, detail))
        else:
            logger.error("While stopping: %s", _because(reason, detail))
            self._worsen(ExitStatus.FAILED)
            self.hurry()

    def hurry(self) -> None:
        """Trio. The second signal: no more draining, migrate at once (rule 122)."""
        self._hurried.set()

    def _is_consequence(self, reason: StopReason) -> bool:
        """Whether the plan itself brings `reason` about: no alarm then (D20)."""
        if reason in ASKED_REASONS:
            return True
        if reason is StopReason.STARTUP_FAILED:
            return self.reason in ASKED_REASONS
        if reason is StopReason.LEASE_LOST:
            return self._reached >= Phase.STOP.number
        if reason is StopReason.ENGINE_DEAD:
            # The end of its group is what a follower waits for.
            expected = Phase.GROUP if Phase.GROUP in self._path else Phase.ENGINE
            return self._reached >= expected.number or Phase.ENGINE not in self._path
        return False

    def _worsen(self, status: ExitStatus) -> None:
        self.status = max(self.status, status)

    # ---- the plan ----

    async def run(self) -> ExitStatus:
        """Trio. Carry the plan out, from a task that nothing else needs. Raises nothing.

        Returns the exit status so far. What follows needs the loop closed: `run_deferred`, then
        `leave`.
        """
        path = self._path
        with trio.CancelScope(shield=True):
            self._notice()
            async with trio.open_nursery() as beside:
                if Phase.WITHDRAW in path:
                    beside.start_soon(self._withdraw)
                if Phase.GROUP in path:
                    await self._wait_for_group()
                if Phase.CHILDREN in path:
                    await self._stop_children()
                if Phase.DRAIN in path:
                    # Never discoverable and refusing at the same time, unless hurried (D21).
                    await _first_of(self._withdrawn.wait, self._hurried.wait)
                    await self._drain()
                if Phase.MIGRATE in path:
                    await self._migrate()
            if Phase.STOP in path:
                await self._stop()
            if Phase.ENGINE in path:
                await self._close_engine()
            if Phase.DEFERRED in path:
                await self._end_manager_tasks()
            if Phase.STOP in path:
                await self._wait_gone()
        logger.info(
            "Shutdown took %.2f s, exit status %d: %s",
            trio.current_time() - self._started,
            self.status,
            ", ".join(f"{record.phase.label} {record.seconds:.2f}" for record in self.records),
        )
        self.finished.set()
        return self.status

    def _notice(self) -> None:
        assert self.reason is not None
        logger.log(
            logging.INFO if self.status is ExitStatus.ASKED else logging.ERROR,
            "Shutdown: %s; %.1f s in all",
            _because(self.reason, self.detail),
            self.bounds.total,
        )
        if self.parts.runtime is not None:
            self.parts.runtime.refuse_registration()

    async def _withdraw(self) -> None:
        if (runtime := self.parts.runtime) is not None:
            asked = "Received shutdown signal; " if self.reason is StopReason.SIGNAL else ""
            logger.info("%sunregistering endpoints from discovery", asked)
            await self._phase(Phase.WITHDRAW, runtime.withdraw)
        self._withdrawn.set()

    async def _drain(self) -> None:
        requests, limit = self.parts.requests, self._limit(Phase.DRAIN)
        if requests is None:
            return
        if limit < self.bounds.grace:
            logger.warning(
                "A grace period of %.2fs does not fit into %.1f s in all",
                self.bounds.grace,
                self.bounds.total,
            )
        if limit <= 0:
            return
        logger.info("Grace period %.2fs before stopping endpoints", limit)
        ended = "grace over"

        async def until_idle() -> None:
            nonlocal ended
            # The clock starts at the withdrawal, however long nobody has been here before.
            await trio.sleep(QUIET_S)
            await requests.wait_idle(QUIET_S)
            ended = "idle"

        async def until_hurried() -> None:
            nonlocal ended
            await self._hurried.wait()
            ended = "hurried"

        async def work() -> None:
            end = trio.current_time() + limit
            await _first_of(until_idle, until_hurried, lambda: _report_progress(requests, end))

        await self._phase(Phase.DRAIN, work, overrun=None, outcome=lambda: ended)

    async def _wait_for_group(self) -> None:
        engine = self.parts.engine
        if engine is None:
            return
        ended = "time over"

        async def until_exited() -> None:
            nonlocal ended
            await engine.wait_exited()
            ended = "exited"

        async def until_hurried() -> None:
            nonlocal ended
            await self._hurried.wait()
            ended = "hurried"

        async def work() -> None:
            await _first_of(until_exited, until_hurried)

        await self._phase(Phase.GROUP, work, overrun=None, outcome=lambda: ended)

    async def _stop_children(self) -> None:
        if (children := self.parts.children) is None:
            return

        async def pass_hurry_on() -> None:
            await self._hurried.wait()
            await children.hurry()
            await trio.sleep_forever()

        async def work() -> None:
            if self.reason is StopReason.ENGINE_DEAD:
                children.tell_engine_dead()
            else:
                children.ask_to_stop()
            await _first_of(children.wait_exited, pass_hurry_on)

        await self._phase(Phase.CHILDREN, work, overrun=None)
        if killed := children.kill():
            logger.error("Gateway children killed, not gone in time: %s", killed)
            self._worsen(ExitStatus.FORCED)
        elif children.failures:
            self._worsen(ExitStatus.FAILED)

    async def _migrate(self) -> None:
        if (requests := self.parts.requests) is None:
            return

        async def work() -> None:
            requests.migrate_all()
            await requests.wait_all_ended()

        await self._phase(Phase.MIGRATE, work)

    async def _stop(self) -> None:
        requests, serving = self.parts.requests, self.parts.serving
        if (runtime := self.parts.runtime) is None:
            return
        limit = self._limit(Phase.STOP)

        async def work() -> None:
            if requests is not None:
                # A path without a migrate phase has hardly anybody here, yet may not strand them.
                requests.migrate_all()
            logger.info("Initiating runtime shutdown")
            runtime.shutdown(limit)
            await runtime.wait_served()
            if serving is not None:
                await serving.join()

        await self._phase(Phase.STOP, work)

    async def _close_engine(self) -> None:
        services, engine = self.parts.services, self.parts.engine
        if services is None and engine is None:
            return
        limit = self._limit(Phase.ENGINE)
        began = self._enter(Phase.ENGINE)
        ended = ["done"]
        if services is not None:
            share = min(self.bounds.services, limit / 4)
            ended.append(await self._step("services", share, services.close))
        if engine is not None:
            left = limit - (trio.current_time() - began)
            ended.append(
                await self._step("engine", left, lambda: engine.close(left), ExitStatus.FORCED)
            )
        self._record(Phase.ENGINE, began, max(ended, key=_SEVERITY.index))

    async def _end_manager_tasks(self) -> None:
        if (engine := self.parts.engine) is not None:
            limit = self._limit(Phase.DEFERRED)
            await self._phase(Phase.DEFERRED, lambda: engine.stop_manager_tasks(limit))

    async def _wait_gone(self) -> None:
        if (runtime := self.parts.runtime) is not None:
            # No failure: what could be withdrawn has been, and the rest goes with the lease.
            await self._phase(Phase.EXIT, runtime.wait_gone, overrun=None)

    def run_deferred(
        self,
        recorded: Iterable[tuple[int, Callable[..., Any], tuple[Any, ...]]],
        signum: int | None,
    ) -> None:
        """Neither flavour: the loop is closed. SGLang's handlers of the received signal, once.

        `recorded` is `WorkerLoop.recorded_signal_handlers`. Nothing is run unless a signal started
        the plan (rules 97, 98); SIGQUIT's handler would kill the process tree.
        """
        if self.reason is not StopReason.SIGNAL:
            return
        logger.info("Running deferred handlers")
        for number, callback, args in recorded:
            if number != signum:
                continue
            try:
                result = callback(*args)
                if inspect.iscoroutine(result):
                    result.close()
                    logger.warning("Deferred signal callback needs a loop, not run: %r", callback)
            except Exception:
                logger.exception("Deferred signal callback failed: %r", callback)

    # ---- one phase ----

    def _limit(self, phase: Phase) -> float:
        later = [other for other in self._path if other.number > phase.number]
        return self.bounds.limit(phase, later, self._deadline - trio.current_time())

    async def _phase(
        self,
        phase: Phase,
        work: Work,
        *,
        overrun: ExitStatus | None = ExitStatus.FAILED,
        outcome: Callable[[], str] | None = None,
    ) -> None:
        """Run one phase inside its bound and keep its record. Raises nothing."""
        seconds, began = self._limit(phase), self._enter(phase)
        ended = await self._step(phase.label, seconds, work, overrun)
        if outcome is not None and ended != "failed":
            ended = outcome()
        self._record(phase, began, ended)

    def _enter(self, phase: Phase) -> float:
        self._active[phase] = trio.current_time()
        self.note(events.PHASE_BEGINS, phase.label)
        self._reached = max(self._reached, phase.number)
        return self._active[phase]

    def _record(self, phase: Phase, began: float, ended: str) -> None:
        del self._active[phase]
        seconds = trio.current_time() - began
        self.records.append(PhaseRecord(phase, seconds, ended))
        self.note(events.PHASE_ENDS, f"{phase.label}: {ended}")
        logger.info(
            "Shutdown phase %d (%s) took %.2f s: %s", phase.number, phase.label, seconds, ended
        )

    async def _step(
        self,
        name: str,
        seconds: float,
        work: Work,
        overrun: ExitStatus | None = ExitStatus.FAILED,
    ) -> str:
        """Run `work` for at most `seconds`; say how it ended. Its failure stops nothing (C3)."""
        overran = False
        try:
            with trio.move_on_after(seconds) as scope:
                await work()
            overran = scope.cancel_called
        except trio.TooSlowError:
            # A collaborator's own bound, set from ours, was a little faster.
            overran = True
        # BaseException: SGLang's tasks end with SystemExit, and the plan outlives them. Cancelled
        # can't come out: nothing reaches through the shield, the scope keeps its own, and steps
        # are never nested.
        except BaseException:
            logger.exception("Shutdown phase failed: %s", name)
            self.failures[name] += 1
            self._worsen(ExitStatus.FAILED)
            return "failed"
        if not overran:
            return "done"
        if overrun is not None:
            logger.warning("Shutdown phase not done after %.2f s, going on: %s", seconds, name)
            self.overruns[name] += 1
            self._worsen(overrun)
        return "overran"

    # ---- looking in ----

    def phase_seconds(self, now: float) -> dict[str, float]:
        """Any thread. How long each phase took, or has taken at Trio's time `now`."""
        return {record.phase.label: record.seconds for record in tuple(self.records)} | {
            phase.label: now - since for phase, since in dict(self._active).items()
        }

    def view(self) -> ShutdownView:
        """Trio. Where the plan is now."""
        now = trio.current_time()
        return ShutdownView(
            reason=None if self.reason is None else self.reason.value,
            detail=self.detail,
            active={phase.label: now - since for phase, since in self._active.items()},
            seconds_left=None if self.reason is None else self._deadline - now,
            phases=tuple(self.records),
            overruns=dict(self.overruns),
            failures=dict(self.failures),
            hurried=self._hurried.is_set(),
            status=int(self.status),
        )


def _because(reason: StopReason, detail: str) -> str:
    return f"{reason.value} ({detail})" if detail else reason.value


async def _report_progress(requests: LiveRequests, end: float) -> None:
    """Trio. One line a second until cancelled."""
    while True:
        await trio.sleep(PROGRESS_S)
        left = end - trio.current_time()
        logger.info("draining: %d requests, %.0f s left", requests.count, left)


async def _first_of(*functions: Work) -> None:
    """Trio. Until one of `functions` has returned; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def run(function: Work) -> None:
            await function()
            nursery.cancel_scope.cancel()

        for function in functions:
            nursery.start_soon(run, function)
