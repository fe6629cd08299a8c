# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The ordered abort: registered, dispatched, then abort, by identity of SGLang's state.

An abort that is sent before dispatch matches nothing in the scheduler, yet marks the state
``abort_sent``: the request would then decode to its end with nobody able to stop it. So nothing
is sent before dispatch (rule 25, fixed form). Where dispatch is already known, the abort leaves
at once, in the call that asks for it.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import trio
from dynamo.sglang.request_handlers.cancellation import CancellationMixin

from compat.tap import Flight
from trio_worker import constants

logger = logging.getLogger(__name__)


def order_is_proven(server_args: Any) -> bool:
    """Whether an abort that follows its request's dispatch arrives behind it (rules 29, 30).

    `server_args` are the resolved ones. Not with pipeline parallelism, nor with data-parallel
    attention whose control messages are not broadcast locally.
    """
    return not CancellationMixin._requires_abort_retry(server_args, dispatch_observed=True)


class AbortEnd(Enum):
    """How an ordered abort ended."""

    SENT = "sent"
    GONE = "gone"
    """SGLang no longer holds the request: it has finished, or never got it."""
    IMPOSSIBLE = "impossible"
    """There is nobody to send it to, or sending failed."""


@dataclass(slots=True)
class AbortCounts:
    """What became of the aborts of one worker."""

    ordered: int = 0
    sent: int = 0
    confirmed: int = 0
    """SGLang has ended the stream of a request whose abort was sent."""
    gone: int = 0
    """Needless: SGLang no longer held the request."""
    retried: int = 0
    abandoned: int = 0
    """The request never registered."""
    unconfirmed: int = 0
    """The request was still registered after the last retry."""
    failed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PendingAbort:
    """An abort that is still waited for."""

    rid: str
    context_id: str
    waits_for: str
    """``dispatch``, or ``confirmation`` where it may have to be sent again."""
    since: float
    """Trio's clock, seconds."""


class Aborts:
    """Sends aborts of one engine. Its tasks hang below the engine nursery, not below a request.

    Build it in Trio, inside the open loop: its tasks get a copy of that context.
    """

    def __init__(
        self,
        tokenizer_manager: Any,
        nursery: trio.Nursery,
        *,
        order_is_proven: bool,
    ) -> None:
        self._manager = tokenizer_manager
        self._nursery = nursery
        self._context = contextvars.copy_context()
        self._order_is_proven = order_is_proven
        self.counts = AbortCounts()
        self.pending: set[PendingAbort] = set()

    @property
    def registry(self) -> Mapping[str, Any] | None:
        """SGLang's live states by rid, where this manager has such a registry."""
        registry = getattr(self._manager, "rid_to_state", None)
        return registry if isinstance(registry, Mapping) else None

    def order(self, flight: Flight, context_id: str, on_end: Callable[[AbortEnd], None]) -> None:
        """Trio or asyncio. Abort `flight` once SGLang can act on it; `on_end` tells how it went.

        Returns at once. The abort outlives the request (rule 23).
        """
        self.counts.ordered += 1
        if self._manager is None:
            logger.error("SGLang tokenizer_manager not found for abort request: %s", context_id)
            on_end(AbortEnd.IMPOSSIBLE)
            return
        registry = self.registry
        state = registry.get(flight.rid) if registry is not None else None
        if registry is None:
            on_end(self._submit(flight.rid, context_id))
        elif state is not None and _dispatched(state) is not False:
            on_end(self._submit_in_order(flight, state, context_id))
        elif flight.ended:
            self.counts.gone += 1
            on_end(AbortEnd.GONE)
        else:
            pending = PendingAbort(flight.rid, context_id, "dispatch", trio.current_time())
            self._start(pending, self._abort_when_dispatched, flight, context_id, on_end)

    def send_now(self, rids: Sequence[str], context_id: str) -> None:
        """Trio or asyncio. Abort rids that SGLang has spoken of; said once (rule 15)."""
        if self._manager is None:
            logger.error("SGLang tokenizer_manager not found for abort requests")
            return
        ends = [self._send(rid, context_id) for rid in rids]
        if AbortEnd.SENT in ends:
            logger.info("Aborted Request ID: %s", context_id)

    def leave(self, flight: Flight, context_id: str) -> bool:
        """Trio. A request ends early: abort what SGLang still holds, before its stream is closed.

        What is not dispatched yet is dropped by closing the stream (rules 25, 78). Returns whether
        an abort was sent.
        """
        registry = self.registry
        state = registry.get(flight.rid) if registry is not None else None
        if state is None or getattr(state, "abort_sent", False) or not _dispatched(state):
            return False
        return self._submit(flight.rid, context_id) is AbortEnd.SENT

    async def _abort_when_dispatched(
        self, flight: Flight, context_id: str, on_end: Callable[[AbortEnd], None]
    ) -> None:
        end = AbortEnd.GONE
        try:
            state = await self._wait_registered(flight)
            if state is None:
                return
            await self._wait_dispatched(flight, state)
            if self._holds(flight.rid, state):
                end = self._submit_in_order(flight, state, context_id)
            else:
                self.counts.gone += 1
        finally:
            on_end(end)

    async def _wait_registered(self, flight: Flight) -> Any:
        registry = self.registry
        assert registry is not None
        with trio.move_on_after(constants.REGISTRATION_WAIT_S) as patience:
            await _look(flight, lambda: flight.ended or flight.rid in registry)
        if patience.cancelled_caught:
            logger.warning("Timed out waiting for SGLang Request ID %s to register", flight.rid)
            return None
        state = registry.get(flight.rid)
        if state is None:
            self.counts.abandoned += 1
            logger.debug(
                "Abandoning SGLang abort for Request ID %s; request never registered", flight.rid
            )
        return state

    async def _wait_dispatched(self, flight: Flight, state: Any) -> None:
        await _look(
            flight,
            lambda: not self._holds(flight.rid, state) or _dispatched(state) is not False,
        )

    def _holds(self, rid: str, state: Any) -> bool:
        registry = self.registry
        return registry is not None and registry.get(rid) is state

    def _submit_in_order(self, flight: Flight, state: Any, context_id: str) -> AbortEnd:
        end = self._submit(flight.rid, context_id)
        if end is AbortEnd.SENT and (not self._order_is_proven or _dispatched(state) is None):
            pending = PendingAbort(flight.rid, context_id, "confirmation", trio.current_time())
            self._start(pending, self._retry, flight.rid, state)
        return end

    def _start(
        self, pending: PendingAbort, task: Callable[..., Awaitable[Any]], *args: Any
    ) -> None:
        # A client's stop is told in the empty context of the runtime's calls; there a socket of
        # pyzmq finds no loop for the future that it returns, and the abort would fail.
        self._context.copy().run(self._nursery.start_soon, self._known, pending, task, *args)

    async def _known(
        self, pending: PendingAbort, task: Callable[..., Awaitable[Any]], *args: Any
    ) -> None:
        self.pending.add(pending)
        try:
            await task(*args)
        finally:
            self.pending.discard(pending)

    def _submit(self, rid: str, context_id: str) -> AbortEnd:
        end = self._send(rid, context_id)
        if end is AbortEnd.SENT:
            logger.info("Aborted Request ID: %s", context_id)
        return end

    def _send(self, rid: str, context_id: str) -> AbortEnd:
        try:
            self._manager.abort_request(rid=rid, abort_all=False)
        except Exception:
            self.counts.failed += 1
            logger.exception("Failed to abort SGLang Request ID %s, Context: %s", rid, context_id)
            return AbortEnd.IMPOSSIBLE  # rules 16, 17, 28: the request ends as it would have
        self.counts.sent += 1
        return AbortEnd.SENT

    async def _retry(self, rid: str, state: Any) -> None:
        delay = constants.ABORT_RETRY_FIRST_S
        for _ in range(constants.ABORT_RETRY_LIMIT):
            await trio.sleep(delay)
            if not self._holds(rid, state):
                return
            # SGLang sends one abort per state; without this a retry sends nothing (rule 33).
            if hasattr(state, "abort_sent"):
                state.abort_sent = False
            logger.debug("Retrying SGLang abort_request for Request ID %s", rid)
            try:
                self._manager.abort_request(rid=rid, abort_all=False)
            except Exception:
                self.counts.failed += 1
                logger.exception("Failed to retry the abort of SGLang Request ID %s", rid)
                return
            self.counts.retried += 1
            delay = min(delay * 2, constants.ABORT_RETRY_MAX_S)
        if self._holds(rid, state):
            self.counts.unconfirmed += 1
            logger.warning(
                "SGLang request %s remained registered after %d abort retries",
                rid,
                constants.ABORT_RETRY_LIMIT,
            )


def _dispatched(state: Any) -> bool | None:
    """Whether the scheduler has been told of `state`; None: this SGLang does not say (rule 26)."""
    time_stats = getattr(state, "time_stats", None)
    if time_stats is None or not hasattr(time_stats, "api_server_dispatch_finish_time"):
        return None
    return bool(time_stats.api_server_dispatch_finish_time)


async def wait_registered(registry: Mapping[str, Any] | None, flight: Flight) -> None:
    """Trio. Until SGLang knows the rid of `flight`, or its stream has ended."""
    await _look(flight, lambda: flight.ended or registry is None or flight.rid in registry)


async def wait_dispatched(registry: Mapping[str, Any] | None, flight: Flight) -> None:
    """Trio. Until SGLang has told its scheduler of `flight`, or no longer holds it."""
    state = registry.get(flight.rid) if registry is not None else None
    if registry is not None and state is not None:
        await _look(
            flight,
            lambda: registry.get(flight.rid) is not state or _dispatched(state) is not False,
        )


async def _look(flight: Flight, condition: Callable[[], bool]) -> None:
    """Wait for `condition`: woken by the tap where there is one, else by looking (rules 19, 24)."""
    delay = constants.ABORT_POLL_FIRST_S
    while not condition():
        with trio.move_on_after(delay):
            await flight.wait_changed()
        delay = min(delay * 2, constants.ABORT_POLL_MAX_S)
