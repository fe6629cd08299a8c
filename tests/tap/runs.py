# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""One request to a real engine, run without the tap or through it, and what it got.

In the tapped ways outputs take the path that a worker's request gives them: a flight, a handover,
a feeder that hands over what SGLang's own generator still yields.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Any

import trio
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import _INCREMENTAL_STREAMING_META_INFO_KEYS

from compat.engine import SglangEngine
from compat.handover import Chunk, Handover
from compat.tap import Flight
from trio_worker.requests.backlog import merge_by_stream

SLOW_OUTPUTS = 3
"""A slow reader looks again when so many outputs wait."""

MERGE_AT = 4
"""Chunks beyond which a handover merges; low, so that the short streams here come to it."""

CUSTOM_KEY = "seen_by_the_test"
"""Customized metadata, one item a token, that the receiving side adds (see `Wire`)."""

PER_TOKEN = (*_INCREMENTAL_STREAMING_META_INFO_KEYS, CUSTOM_KEY)


class Way(StrEnum):
    """How a request's outputs are read."""

    PLAIN = "plain"
    """SGLang's own ``async for``, no tap."""
    PARKED = "parked"
    """The tap, and a reader that always waits: outputs are delivered in place."""
    SLOW = "slow"
    """The tap, and a reader that comes when several wait: outputs are merged."""
    AWAY = "away"
    """The tap, and a reader that reads nothing until it is told to."""


BOTH = (Way.PLAIN, Way.PARKED, Way.SLOW)


class Run:
    """One request, run one way. Trio."""

    def __init__(self, engine: SglangEngine, way: Way, rid: str, request: dict[str, Any]) -> None:
        self.way = way
        self.rid = rid
        self.chunks: list[Chunk] = []
        self.in_place = 0
        self.tapped = False
        self.cancelled = False
        self.error: list[Any] | None = None
        self.may_read = trio.Event()
        self.ended = trio.Event()
        self._engine = engine
        self._manager = engine.tokenizer_manager
        self._request = request
        self._handover = Handover(MERGE_AT)
        self._feeder: Any = None

    async def __call__(self) -> None:
        """Trio. Run it to its end."""
        flight: Flight | None = None
        handover = self._handover
        if self.way is not Way.PLAIN:
            flight = self._manager.flights[self.rid] = Flight(self.rid, handover)
            handover.merge = partial(merge_by_stream, customized_keys=self._manager.customized_keys)
            handover.deliver = self._deliver
            self._feeder = self._engine.feeders.start(
                self._feed(handover.put, handover.fail, handover.close)
            )
            await self._read()
        else:
            self._feeder = self._engine.feeders.start(
                self._feed(self.chunks.append, self._fail, lambda: None)
            )
        await self._feeder.wait_ended()
        self._feeder.forget()
        if flight is not None:
            handover.leave()
            flight.handover = None
            del self._manager.flights[self.rid]
        self.ended.set()

    def leave(self) -> None:
        """Trio. As a request that leaves: its feeder is cancelled, which aborts."""
        self._feeder.cancel()

    async def _feed(
        self,
        put: Callable[[Chunk], None],
        fail: Callable[[BaseException], None],
        close: Callable[[], None],
    ) -> None:
        stream = self._manager.generate_request(
            GenerateReqInput(rid=self.rid, **copy.deepcopy(self._request))
        )
        try:
            async for chunk in stream:
                put(chunk)
                self.tapped |= self._handover.tap is not None
        except asyncio.CancelledError:
            self.cancelled = True
        except BaseException as error:
            fail(error)
        finally:
            await stream.aclose()
            close()

    def _deliver(self, chunk: Chunk) -> None:
        self.in_place += 1
        self.chunks.append(chunk)

    async def _read(self) -> None:
        handover = self._handover
        if self.way is Way.AWAY:
            await self.may_read.wait()
        while True:
            if self.way is Way.SLOW:
                await self._wait_for_several()
            try:
                self.chunks += await handover.receive()
            except trio.EndOfChannel:
                return
            except Exception as error:
                self._fail(error)

    async def _wait_for_several(self) -> None:
        while not self.ended.is_set():
            state = self._manager.rid_to_state.get(self.rid)
            if len(state.out_list if state is not None else ()) >= SLOW_OUTPUTS:
                return
            if state is None and (self._feeder is None or self._feeder.done):
                return
            del state
            await trio.sleep(0.001)

    def _fail(self, error: BaseException) -> None:
        self.error = [type(error).__name__, str(error), getattr(error, "status_code", None)]
        error.__traceback__ = None

    def record(self) -> dict[str, Any]:
        """What it got, after joining, and how it came."""
        return {
            "got": joined(self.chunks),
            "error": self.error,
            "cancelled": self.cancelled,
            "how": {
                "chunks": len(self.chunks),
                "in_place": self.in_place,
                "tapped": self.tapped,
                "stamped": ["response_sent_to_client_ts" in c["meta_info"] for c in self.chunks],
                "last": self.chunks[-1] if self.chunks else None,
            },
        }


def joined(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """One account of all chunks, the same however they were cut: JSON can say it."""
    chunks = list(chunks)
    metas = [chunk["meta_info"] for chunk in chunks]
    if not metas:
        return {}
    return {
        "text": "".join(chunk["text"] for chunk in chunks if "text" in chunk),
        "ids": [token for chunk in chunks for token in chunk["output_ids"]],
        "per_token": {
            key: [item for meta in metas for item in meta.get(key, ())]
            for key in PER_TOKEN
            if any(key in meta for meta in metas)
        },
        "meta": without_times(metas[-1]),
        "keys": sorted({key for meta in metas for key in meta}),
        "fields": sorted({key for chunk in chunks for key in chunk}),
        "prompt_ids": chunks[-1].get("prompt_token_ids"),
        "early_ends": sum(meta["finish_reason"] is not None for meta in metas[:-1]),
    }


def without_times(meta_info: dict[str, Any]) -> dict[str, Any]:
    """What of a chunk's metadata does not depend on the clock, on the rid or on the cut."""
    return {
        key: value
        for key, value in meta_info.items()
        if key not in PER_TOKEN and key != "id" and not isinstance(value, float)
    }


class Wire:
    """Between SGLang's socket and its manager: what the stand-in scheduler does not send.

    Each token of an output gets an item of customized metadata and a sampling mask. Messages about
    rids that begin with ``ids.`` come as they do from an engine without tokenizer.
    """

    def __init__(self, manager: Any) -> None:
        self._handle: Callable[[Any], Awaitable[None]] = manager._handle_batch_output
        manager._handle_batch_output = self.handle

    async def handle(self, message: Any) -> None:
        """asyncio. Dress one message up and pass it on."""
        from sglang.srt.managers.io_struct import wrap_as_pickle

        ids = [list(row) for row in message.output_ids]
        message.customized_info = wrap_as_pickle({CUSTOM_KEY: [[f"<{i}>" for i in r] for r in ids]})
        message.output_token_sampling_mask = [_mask(row) for row in ids]
        if any(rid.startswith("ids.") for rid in message.rids):
            message = _token_ids_only(message)
        await self._handle(message)


def _mask(ids: list[int]) -> Any:
    import numpy as np
    from sglang.srt.sampling.sampling_mask import SamplingMaskChunk

    return SamplingMaskChunk(
        lengths=np.full(len(ids), 2, dtype=np.int32),
        token_ids=np.array([t for i in ids for t in (i, i + 1)], dtype=np.int32),
        logprobs=np.array([-i / 8 for i in ids], dtype=np.float32),
    )


def _token_ids_only(message: Any) -> Any:
    from sglang.srt.managers.io_struct import BatchTokenIDOutput

    known = BatchTokenIDOutput.__struct_fields__
    fields = {f: getattr(message, f) for f in message.__struct_fields__ if f in known}
    unread = (
        "decoded_texts",
        "decode_ids",
        "read_offsets",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
    )
    return BatchTokenIDOutput(**fields, **{key: [] for key in unread})
