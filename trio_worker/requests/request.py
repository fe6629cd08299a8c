# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One request: a Trio task that reads chunks until end of stream, in a scope of its own.

The scope has no deadline until the client leaves; then it is now + 1 s, absolute (rule 45). On a
worker shutdown there is no drain: chunks are delivered until the ordered abort is out (rule 36),
and the scope is cancelled. A request task never raises into the nursery that owns it: a raising
child would cancel its siblings and wrap the error in a group. Its outcome goes into one slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import trio
import trio_asyncio

from compat.egress import ConsumerLeft, Egress
from compat.feeders import Feeder
from compat.handover import Chunk, Handover
from compat.tap import Flight
from trio_worker import constants
from trio_worker.recorder import events
from trio_worker.requests.abort import AbortEnd, wait_dispatched, wait_registered
from trio_worker.requests.outcome import Outcome, decide
from trio_worker.requests.plan import Plan, Uploader
from trio_worker.responses import choice_index

if TYPE_CHECKING:
    from trio_worker.requests.live import LiveRequests

logger = logging.getLogger(__name__)


class Context(Protocol):
    """``dynamo._core.Context``, as far as a request uses it."""

    def id(self) -> str: ...
    def is_stopped(self) -> bool: ...
    def async_killed_or_stopped(self) -> asyncio.Future[Any]: ...


class Phase(Enum):
    """Where a request stands, for whoever looks at the live tree."""

    PLANNING = "planning"
    STREAMING = "streaming"
    DRAINING = "draining"
    MIGRATING = "migrating"


_ABORT_EVENTS = {
    AbortEnd.SENT: events.ABORT_SENT,
    AbortEnd.GONE: events.ABORT_NEEDLESS,
    AbortEnd.IMPOSSIBLE: events.ABORT_FAILED,
}


class Request:
    """One request from admission to outcome."""

    __slots__ = (
        "__weakref__",
        "_abort_sent",
        "_abort_settled",
        "_chunk_seen",
        "_drain_began",
        "_egress",
        "_feeder",
        "_flight",
        "_flushed",
        "_handover",
        "_note",
        "_owner",
        "_stop_watch",
        "_unopened",
        "_wanted",
        "accepted",
        "admitted_at",
        "client_left",
        "context",
        "context_id",
        "outcome",
        "plan",
        "scope",
        "shutting_down",
    )

    def __init__(
        self,
        owner: LiveRequests,
        context: Context,
        egress: Egress,
        planning: Callable[[], Coroutine[Any, Any, Plan]],
    ) -> None:
        self._owner = owner
        self._egress = egress
        self.context = context
        self.context_id = context.id()
        self._note = owner.recorder.lane()
        self._note(events.RECEIVED, self.context_id)
        self.plan: Plan | None = None
        self.scope = trio.CancelScope()
        self.outcome = Outcome(owner.loop.create_future())
        self.client_left = False
        self.shutting_down = False
        self.admitted_at = trio.current_time()
        self.accepted = 0
        """Responses that the egress has taken."""
        self._abort_sent = False
        self._abort_settled = False
        self._chunk_seen = False
        self._drain_began = False
        self._flushed = False
        self._unopened = False
        self._wanted: trio.CancelScope | None = None
        """Around waits for the consumer."""
        self._flight: Flight | None = None
        self._handover = Handover(constants.MERGE_OUTPUTS_AT)
        self._feeder: Feeder = owner.feeders.start(self._feed(planning))
        self._stop_watch = context.async_killed_or_stopped()
        self._stop_watch.add_done_callback(self._client_stop)

    # ---- the feeder: asyncio ----

    async def _feed(self, planning: Callable[[], Coroutine[Any, Any, Plan]]) -> None:
        """asyncio. Plan, submit, hand chunks over until end of stream; never raises."""
        handover = self._handover
        source: AsyncIterator[Chunk] | None = None
        plan: Plan | None = None
        try:
            plan = await planning()
            self._planned(plan)
            source = await plan.submit()
            async for chunk in source:
                handover.put(chunk)
            self._stream_ended()
        except asyncio.CancelledError:
            # Only a leaving request or the engine's owner cancels a feeder.
            return
        except BaseException as error:
            self._stream_ended(type(error).__name__)
            handover.fail(error)
        finally:
            await _close(source)
            if plan is not None and plan.release is not None:
                await _release(plan.release)
            handover.close()
            if self._flight is not None:
                self._flight.ended = True
                self._flight.poke()
            # SGLang's tasks of several choices keep their last error; from Python 3.12 on, the
            # frames of its traceback lead to this one, which must not lead back to the request.
            del self, planning, handover, source, plan

    def _stream_ended(self, error: str | None = None) -> None:
        if self._abort_sent:
            self._owner.aborts.counts.confirmed += 1
        self._note(events.ABORT_CONFIRMED if self._abort_sent else events.STREAM_ENDED, error)

    def _planned(self, plan: Plan) -> None:
        self.plan = plan
        self._note(events.SUBMITTED, plan.engine_rid)
        self._handover.merge = plan.merge
        if plan.ordered:
            handover = self._handover if plan.tapped else None
            self._flight = self._owner.take_off(plan.engine_rid, handover, self._note)
        if plan.uploader is None:
            self._handover.deliver = self._relay
        if plan.opening is not None and not self._nobody_listens:
            if plan.opening_waits and self._flight is not None:
                self._unopened = True
                self._handover.ring()
            else:
                self._send(plan.opening)

    # ---- signals: asyncio or Trio, synchronous ----

    def _client_stop(self, _watch: asyncio.Future[Any]) -> None:
        """asyncio. The context was stopped or killed (rules 10, 90)."""
        if not _watch.cancelled():
            self.stop_for_client()

    def stop_for_client(self) -> None:
        """asyncio or Trio. The client left: order the abort, drain until an absolute deadline."""
        if self.client_left:
            return
        self.client_left = True
        self._note(events.STOP_SEEN, "client")
        if self._wanted is not None:
            self._wanted.cancel()
        if self.shutting_down:
            return
        self._drain_began = self._drain_seconds > 0
        self._log_signal()
        self.scope.deadline = trio.current_time() + self._drain_seconds
        self._order_abort()

    def stop_for_shutdown(self) -> None:
        """Trio. The worker migrates its requests: no drain (rules 36, 37, 75)."""
        if self.shutting_down:
            return
        self.shutting_down = True
        self._note(events.STOP_SEEN, "worker")
        if self.client_left:
            return  # rule 75: the drain goes on, and ends as a shutdown
        self._log_signal()
        self.scope.deadline = trio.current_time() + constants.SHUTDOWN_ABORT_S
        self._order_abort()

    def abandon(self) -> None:
        """asyncio. Whoever asked is gone without a word (rule 131): end, abort what runs."""
        self.scope.cancel()

    @property
    def _drain_seconds(self) -> float:
        return constants.DRAIN_S if self.plan is None or self.plan.drains else 0.0

    def _log_signal(self) -> None:
        logger.info(
            "Cancellation or shutdown signal received for SGLang Request ID %s, Context: %s",
            self.plan.engine_rid if self.plan is not None else "unknown",
            self.context_id,
        )

    def _order_abort(self) -> None:
        if self.plan is None:
            # Nothing is submitted, and nothing will be. A feeder that was cancelled before its
            # first step never comes to close the channel itself.
            self._feeder.cancel()
            self._handover.close()
            return
        self._note(events.ABORT_ORDERED)
        if self._flight is not None:
            self._owner.aborts.order(self._flight, self.context_id, self._abort_ended)
            self._abort_strangers(self._flight)
        else:
            self._abort_unfinished()
            self._abort_ended(AbortEnd.SENT)

    def _abort_ended(self, end: AbortEnd) -> None:
        self._abort_sent = end is AbortEnd.SENT
        self._abort_settled = True
        self._note(_ABORT_EVENTS[end])
        if self.shutting_down and not self.client_left and end is not AbortEnd.GONE:
            self.scope.cancel()

    def _abort_unfinished(self) -> None:
        """Response-id mode: abort every id that SGLang has named so far (rules 15, 51, 64)."""
        assert self.plan is not None
        ids = self.plan.responses.unfinished_ids
        if ids:
            self._owner.aborts.send_now(sorted(ids), self.context_id)
            ids.clear()

    def _abort_strangers(self, flight: Flight) -> None:
        """Ordered mode, but SGLang answers under another id than ours (rule 22)."""
        assert self.plan is not None
        ids = self.plan.responses.unfinished_ids - {flight.rid}
        if ids:
            self._owner.aborts.send_now(sorted(ids), self.context_id)
            self.plan.responses.unfinished_ids -= ids

    # ---- the request task: Trio ----

    async def run(self) -> None:
        """Trio. From the first chunk to the outcome; the serving nursery's child."""
        error: BaseException | None = None
        cancelled_from_above: trio.Cancelled | None = None
        try:
            with self.scope:
                try:
                    await self._read()
                    self._close()
                except Exception as failure:
                    if not self._tell(failure):
                        raise
                if self.client_left:
                    self._egress.discard()
                self._flushed = await self._unless_the_client_leaves(self._egress.finish)
        except ConsumerLeft:
            self.client_left = True
        except trio.Cancelled as cancelled:
            cancelled_from_above = cancelled
            self.shutting_down = True  # rule 111: a closed nursery is a shutdown
        except BaseException as caught:
            error = caught
        try:
            with trio.CancelScope(shield=True):
                self._end_drain()
                await self._leave()
                await self._put_outcome(error)
            if cancelled_from_above is not None:
                raise cancelled_from_above
        finally:
            self._owner.landed(self)
            del error, cancelled_from_above

    async def _read(self) -> None:
        handover = self._handover
        egress = self._egress
        while True:
            try:
                chunks = await handover.receive()
            except trio.EndOfChannel:
                return
            plan = self.plan
            assert plan is not None
            if self._unopened:
                await self._open(plan)
            if len(chunks) > 1 and egress.backlogged:
                chunks = plan.merge(chunks)
            for chunk in chunks:
                if plan.uploader is not None and plan.responses.upload_due(chunk):
                    await self._relay_after_upload(chunk, plan.uploader)
                else:
                    self._relay(chunk)
            if egress.backlogged:
                try:
                    await self._unless_the_client_leaves(egress.wait_room)
                except ConsumerLeft:
                    self.stop_for_client()

    async def _unless_the_client_leaves(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Trio. Await `wait()`; False if the client leaves first: nothing has to reach it then."""
        with trio.CancelScope() as self._wanted:
            if self.client_left:
                self._wanted.cancel()
            await wait()
            return True
        return False

    @property
    def _nobody_listens(self) -> bool:
        # A stopped context tells it at once, its future a callback later.
        return self.client_left or self.context.is_stopped()

    async def _open(self, plan: Plan) -> None:
        """Trio. Send the opening that waits for SGLang to hold the request (rule 86).

        Raises RuntimeError where SGLang does not register it in time.
        """
        flight, registry = self._flight, self._owner.aborts.registry
        assert flight is not None
        self._unopened = False
        with trio.move_on_after(constants.OPENING_WAIT_S) as patience:
            await wait_registered(registry, flight)
        if patience.cancelled_caught:
            raise RuntimeError(
                f"SGLang did not register prefill request {flight.rid} within "
                f"{constants.OPENING_WAIT_S:g}s"
            )
        await wait_dispatched(registry, flight)
        if not (self._handover.failed or self._nobody_listens or self.shutting_down):
            self._send(plan.opening)

    def _tell(self, error: Exception) -> bool:
        """Trio. Whether the client is told of `error` in a response, as some roles do it."""
        plan = self.plan
        if plan is None or plan.in_band is None or self._nobody_listens or self.shutting_down:
            return False
        response = plan.in_band(error)
        if response is None:
            return False
        self._send(response)
        return True

    def _close(self) -> None:
        """Trio. The stream has ended by itself."""
        plan = self.plan
        if plan is None or plan.closing is None or self._nobody_listens or self.shutting_down:
            return
        response = plan.closing()
        if response is not None:
            self._send(response)

    def _relay(self, chunk: Chunk) -> None:
        """Trio, or asyncio in place of a wake-up. Convert one chunk and send it."""
        plan = self.plan
        assert plan is not None
        if not self._chunk_seen:
            self._chunk_seen = True
            self._note(events.FIRST_TOKEN)
        if self.client_left or self.context.is_stopped():
            plan.responses.observe(chunk)
            if self.client_left:
                if self._flight is None:
                    self._abort_unfinished()
                else:
                    self._abort_strangers(self._flight)
            return
        response = plan.responses.convert(chunk, shutting_down=self.shutting_down)
        if response is not None:
            self._send(response)

    def _send(self, response: Any) -> None:
        egress = self._egress
        try:
            egress.send(response)
        except ConsumerLeft:
            # Rule 115: dropping the stream stops the context; a traceback would tell nobody.
            self.stop_for_client()
            return
        self.accepted += 1
        if egress.backlogged:
            self._handover.ring()

    async def _relay_after_upload(self, chunk: Chunk, uploader: Uploader) -> None:
        """Trio. The final chunk of a choice whose metadata goes elsewhere (rule 88)."""
        plan = self.plan
        assert plan is not None
        if self.client_left or self.context.is_stopped():
            self._relay(chunk)
            return
        responses = plan.responses
        response = responses.convert(chunk, shutting_down=self.shutting_down)
        meta_info = chunk["meta_info"]
        try:
            await trio_asyncio.aio_as_trio(uploader.upload_choice)(choice_index(chunk), meta_info)
        except BaseException as error:
            meta_info.clear()
            # The bridge's frames hold their task, and the task the error: a cycle (rule 55).
            error.__traceback__ = None
            raise
        responses.uploaded(chunk, shutting_down=self.shutting_down)
        if response is not None and not self._nobody_listens:
            self._send(response)

    def _end_drain(self) -> None:
        if not self.scope.cancelled_caught:
            if self._drain_began:
                self._owner.drains_ended += 1
                self._note(events.DRAIN_ENDED, "done")
            return
        if self.shutting_down and not self.client_left:
            if not self._abort_settled:
                logger.warning("Timed out waiting for ordered SGLang abort during shutdown")
        elif self.client_left and self._drain_seconds:
            self._owner.drains_timed_out += 1
            self._note(events.DRAIN_ENDED, "timed out")
            logger.warning("Timed out draining SGLang stream after cancellation")

    async def _leave(self) -> None:
        """Trio, shielded. Abort first, then close the generator (rules 58-65, field report S1)."""
        self._stop_watch.remove_done_callback(self._client_stop)
        if not self._stop_watch.done():
            self._stop_watch.cancel()
        plan = self.plan
        feeder = self._feeder
        if not feeder.done:
            if plan is not None and not plan.responses.all_finished:
                if self._flight is not None:
                    if not self._abort_sent and self._owner.aborts.leave(
                        self._flight, self.context_id
                    ):
                        self._note(events.ABORT_SENT, "on leaving")
                    self._abort_strangers(self._flight)
                else:
                    self._abort_unfinished()
            feeder.cancel()
            with trio.move_on_after(constants.FEEDER_CLOSE_S):
                await feeder.wait_ended()
            if not feeder.done:
                self._owner.feeders.detach(feeder, self.context_id)
                self._note(events.DETACHED)
        self._handover.leave()
        if plan is not None:
            self._owner.clear_leftovers(plan)
        if self._flight is not None:
            self._owner.land(self._flight)
        feeder.forget()

    async def _put_outcome(self, error: BaseException | None) -> None:
        plan = self.plan
        finished = plan is not None and plan.responses.all_finished
        if finished and not self._flushed and not self.client_left:
            # Rule 129: all that was missing when the scope ended is the end of the stream.
            with trio.move_on_after(constants.EGRESS_FLUSH_S):
                await self._egress.finish()
                self._flushed = True
        complete = finished and self._flushed
        end = decide(
            complete=complete,
            shutting_down=self.shutting_down,
            client_left=self.client_left,
            submitted=self._chunk_seen or self._abort_sent,
            error=error,
        )
        if end is not None and not finished and not self.client_left:
            with trio.move_on_after(constants.EGRESS_FLUSH_S):
                await self._egress.flush()
        if not self._flushed:
            self._egress.discard()
        if self.shutting_down and not complete:
            self._owner.migrated += 1
            how = "migrated"
        elif end is not None:
            how = type(end).__name__
        else:
            how = "client left" if self.client_left and not finished else "complete"
        self._note(events.ENDED, how)
        self.outcome.put(end)
        del end, error

    # ---- for the live tree ----

    @property
    def ended(self) -> asyncio.Future[None]:
        """asyncio. Done when the request has ended, whatever the outcome."""
        return self.outcome.ended

    def take_outcome(self) -> None:
        """asyncio. Raise the outcome, bare and typed, or return."""
        self.outcome.take()

    def drop_outcome(self) -> None:
        """asyncio. Nobody will ask for the outcome."""
        self.outcome.drop()

    @property
    def backlog(self) -> int:
        """Chunks and frames of ours that wait (not those that the tap has left with SGLang)."""
        return self._handover.backlog + self._egress.waiting

    @property
    def stuck_seconds(self) -> float:
        """How long one ``send`` of this request has been blocking a carrier; 0: none does."""
        return self._egress.stuck_seconds

    @property
    def phase(self) -> Phase:
        """Where the request stands."""
        if self.plan is None:
            return Phase.PLANNING
        if self.client_left:
            return Phase.DRAINING
        if self.shutting_down:
            return Phase.MIGRATING
        return Phase.STREAMING


async def _release(release: Callable[[], Awaitable[None]]) -> None:
    """asyncio. Let go of what a plan holds; its trouble is nobody's answer."""
    try:
        await release()
    except asyncio.CancelledError:
        return
    except Exception:
        logger.exception("What a request held could not be released")


async def _close(source: AsyncIterator[Chunk] | None) -> None:
    """asyncio. Close SGLang's generator: aborts every dispatched child rid (rule 130)."""
    aclose = getattr(source, "aclose", None)
    if aclose is None:
        return
    try:
        await aclose()
    except asyncio.CancelledError:
        return
    except Exception:
        logger.exception("Detached SGLang task failed during cancellation")
