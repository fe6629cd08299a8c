# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Where a request's outputs leave SGLang: a tap on the tokenizer manager.

SGLang's receive loop appends each output to ``ReqState.out_list`` and calls
``state.event.set()``; a task per request then wakes, takes the output, passes it through three
generators. For the rids that we registered an object stands in place of ``state.event`` whose
``set()`` hands the output over at once. Only the last output takes SGLang's own path, so request
logging, exporters, abort mapping and lock release stay SGLang's.

Scope: single, streaming, incremental, n = 1, no beam. Child rids are regenerated, ``index`` is
added later, intermediate beams must be skipped: outside the scope the feeder's plain ``async for``
is right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from compat.handover import Chunk, Handover

logger = logging.getLogger(__name__)


Merge = Callable[[Sequence[Chunk], Iterable[str]], Chunk]
"""``merge(outputs, keys of customized per-token metadata)``: one output for several."""


class Flight:
    """What SGLang's side has told us of one submitted rid."""

    __slots__ = ("_changed", "ended", "handover", "note", "rid")

    def __init__(
        self, rid: str, handover: Handover | None, note: Callable[[str], None] | None = None
    ) -> None:
        self.rid = rid
        self.note = note
        """Told, by name, what SGLang did with the rid."""
        self.handover = handover
        """Where a tap hands outputs over; None: this request is not tapped."""
        self.ended = False
        """Its stream has ended; it will not register any more."""
        self._changed: trio.Event | None = None

    def poke(self, what: str | None = None) -> None:
        """asyncio. Something happened to the rid: whoever waits looks again."""
        if what is not None and self.note is not None:
            self.note(what)
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_changed(self) -> None:
        """Trio. Wait for the next `poke`."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()


class Tap:
    """Stands in for one ``ReqState.event``. All methods are called by asyncio code."""

    __slots__ = ("_first", "_handover", "_last", "_merge", "_merge_at", "_state")

    def __init__(
        self,
        state: Any,
        handover: Handover,
        merge: Merge,
        merge_at: int,
    ) -> None:
        self._state = state
        self._handover = handover
        self._merge = merge
        self._merge_at = merge_at
        self._last = asyncio.Event()
        self._first = True

    def set(self) -> None:
        """SGLang has appended an output. Nothing may leave here (rule 120).

        An ``Exception`` would kill the process, a ``CancelledError`` end SGLang's receive loop
        in silence and hang every stream.
        """
        state = self._state
        try:
            if state.finished:
                self._leave_the_last()
                return
            if self._first:
                self._stamp_first()
            handover = self._handover
            outputs = state.out_list
            if handover.parked:
                state.out_list = []
                handover.deliver_in_place(
                    outputs[0] if len(outputs) == 1 else self._merged(outputs)
                )
            else:
                if len(outputs) > self._merge_at:
                    state.out_list = [self._merged(outputs)]
                handover.ring()
        except BaseException as error:
            self._handover.fail(error)

    def _leave_the_last(self) -> None:
        # Merged with the last output, as SGLang would do it, what waits would be lost where that
        # is an error (rule 121).
        self._last.set()
        state = self._state
        waiting = state.out_list[:-1]
        if waiting:
            state.out_list = state.out_list[-1:]
            self._handover.put(waiting[0] if len(waiting) == 1 else self._merged(waiting))

    def _stamp_first(self) -> None:
        self._first = False
        stats = self._state.time_stats
        if not stats.response_sent_to_client_time:
            stats.set_response_sent_to_client_time()
            self._state.out_list[-1]["meta_info"]["response_sent_to_client_ts"] = (
                stats.get_response_sent_to_client_realtime()
            )

    def take(self) -> list[Chunk]:
        """Trio. What waits, merged; nothing once finished: SGLang's own path needs it then."""
        state = self._state
        if state.finished or not state.out_list:
            return []
        outputs: list[Chunk] = state.out_list
        state.out_list = []
        return outputs if len(outputs) == 1 else [self._merged(outputs)]

    def _merged(self, outputs: list[Chunk]) -> Chunk:
        return self._merge(outputs, self._state.customized_info_accumulated)

    def clear(self) -> None:
        """SGLang is about to read the last output."""

    def is_set(self) -> bool:
        """Whether the last output is there."""
        return self._last.is_set()

    async def wait(self) -> bool:
        """asyncio. SGLang's own path waits here for the last output."""
        return await self._last.wait()


if TYPE_CHECKING:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager as _Base
else:
    _Base = object


class TapMixin(_Base):  # type: ignore[misc]  # SGLang has no types
    """Mixed into SGLang's ``TokenizerManager`` (or ``TokenizerWorker``) by `tapped`."""

    tap_merge: Merge
    tap_merge_at: int
    tap_weight_version: Callable[[], Any] | None
    on_receive_loop_error: Callable[[BaseException], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.flights: dict[str, Flight] = {}
        self.customized_keys: set[str] = set()
        """Metadata that this engine sends for each token, beyond SGLang's own; merges need it."""
        super().__init__(*args, **kwargs)

    def _init_req_state(self, obj: Any, request: Any = None) -> None:
        super()._init_req_state(obj, request)
        rid = obj.rid
        if isinstance(rid, str):
            flight = self.flights.get(rid)
            if flight is not None:
                flight.poke("registered")

    def _mark_state_dispatched(self, rid: str) -> None:
        super()._mark_state_dispatched(rid)
        flight = self.flights.get(rid)
        if flight is not None:
            flight.poke("dispatched")

    async def _stream_one_response(
        self, obj: Any, state: Any, request: Any = None
    ) -> AsyncIterator[Chunk]:
        flight = self.flights.get(obj.rid)
        handover = flight.handover if flight is not None else None
        if handover is None or not self._in_scope(obj, request):
            async for out in super()._stream_one_response(obj, state, request):
                yield out
            return
        tap = Tap(state, handover, self.tap_merge, self.tap_merge_at)
        try:
            state.event = tap
            handover.tap = tap
            if state.out_list:
                tap.set()
            async for out in super()._stream_one_response(obj, state, request):
                yield out
        finally:
            # Should the stream fail: what waits was there before its error (rule 121).
            for waiting in tap.take():
                handover.put(waiting)
            # Left in place, tap and state would keep each other alive.
            handover.tap = None
            event = asyncio.Event()
            if state.out_list:
                event.set()
            state.event = event

    def update_request_meta_info(
        self, meta_info: Any, state: Any, customized_info: dict[str, Any], *args: Any
    ) -> None:
        self.customized_keys.update(customized_info)
        super().update_request_meta_info(meta_info, state, customized_info, *args)

    def config_value(self, name: str) -> Any:
        """Upstream asks for ``weight_version`` at each output, and finds its place anew."""
        if name == "weight_version" and self.tap_weight_version is not None:
            return self.tap_weight_version()
        return super().config_value(name)

    def _coalesce_streaming_chunks(
        self, out_list: list[Chunk], rid: str, customized_info_keys: Iterable[str] | None = None
    ) -> Chunk:
        """Upstream's fails where an abort echo, which alone has a text, meets pending outputs."""
        return self.tap_merge(out_list, customized_info_keys or ())

    def _in_scope(self, obj: Any, request: Any) -> bool:
        if request is not None or not getattr(obj, "stream", False):
            return False
        if not self.incremental_streaming_output:
            return False
        params = obj.sampling_params
        return not (isinstance(params, dict) and (params.get("beam_width") or 1) > 1)

    async def handle_loop(self) -> None:
        """asyncio. SGLang's receive loop; its error reaches our tree.

        Upstream ``print_exception_wrapper`` would kill the whole process with SIGKILL.
        """
        try:
            await super().handle_loop()
        except Exception as error:
            logger.exception("SGLang's receive loop failed")
            if self.on_receive_loop_error is None:
                raise
            self.on_receive_loop_error(error)


def tapped(
    base: type, *, merge: Merge, merge_at: int, weight_version: Callable[[], Any] | None = None
) -> type:
    """A subclass of SGLang's `base` manager with the tap built in.

    `weight_version`: a short way to what ``base.config_value`` says of it; None: that one.
    """
    return type(
        f"Tapped{base.__name__}",
        (TapMixin, base),
        {
            "tap_merge": staticmethod(merge),
            "tap_merge_at": merge_at,
            "tap_weight_version": None if weight_version is None else staticmethod(weight_version),
        },
    )
