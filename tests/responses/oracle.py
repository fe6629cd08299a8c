# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's stream processors and ours, fed with the same chunks under the same events.

Both runs give a `Journal`: what was sent, uploaded and notified, in order, and how it ended. Equal
journals mean equal answers. The incumbent runs on a plain asyncio loop of its own, without its
cancellation monitor: who watches and aborts is not what is compared here.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dynamo.common.constants import DisaggregationMode
from dynamo.sglang.request_handlers.llm import decode_handler
from dynamo.sglang.request_handlers.llm.decode_handler import DecodeWorkerHandler

from trio_worker.responses import (
    NativeResponses,
    Responses,
    TextResponses,
    TokenResponses,
    choice_index,
    wrap_native,
)

Chunk = dict[str, Any]

CONTEXT_ID = "context-7"
MODEL = "served-model"


@dataclass
class Scenario:
    """A stream of SGLang chunks, what the request asked for, and when the world changes.

    `stop_at` and `shutdown_at` are chunk numbers: the client has left, or the worker is
    shutting down, when that chunk arrives. `shutdown_in_upload` sets the latter during an upload.
    """

    chunks: list[Chunk]
    mode: str = "tokens"
    ordered: bool = True
    stop_at: int | None = None
    shutdown_at: int | None = None
    shutdown_in_upload: bool = False
    uploads: bool = False
    upload_error: Exception | None = None
    wants_logprobs: bool = False
    return_tokens_as_token_ids: bool = False
    user_stop_token_ids: set[int] | None = None
    report_kv_cache_hit: bool = True
    disaggregated_decode: bool = False
    request: dict[str, Any] | None = None
    choices: int = 1
    internal_request_id: str | None = None
    response_request_id: str | list[str] | None = None


@dataclass
class Journal:
    """What one run did."""

    events: list[tuple[Any, ...]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    error: tuple[type[BaseException], tuple[Any, ...]] | None = None
    unfinished_ids: set[str] = field(default_factory=set)
    chunks_after: list[Chunk] = field(default_factory=list)

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [event[1] for event in self.events if event[0] == "send"]

    def exact(self) -> str:
        """Types and key order too, which `==` does not see."""
        return repr((self.events, self.error, self.chunks_after))


class World:
    """The state that changes while a stream runs, and the only clock."""

    def __init__(self, scenario: Scenario, journal: Journal) -> None:
        self.scenario = scenario
        self.journal = journal
        self.stopped = False
        self.shutting_down = False
        ticks = itertools.count()
        # Never the same twice: reading it once too often shows.
        self.now: Callable[[], float] = lambda: 1_700_000_000.5 + next(ticks)

    def feed(self) -> Iterator[Chunk]:
        for position, chunk in enumerate(self.journal.chunks_after):
            if position == self.scenario.stop_at:
                self.stopped = True
            if position == self.scenario.shutdown_at:
                self.shutting_down = True
            yield wrap_native(chunk) if self.scenario.mode == "native" else chunk

    def upload(self, index: int, meta_info: dict[str, Any]) -> None:
        self.journal.events.append(("upload", index, copy.deepcopy(meta_info)))
        if self.scenario.shutdown_in_upload:
            self.shutting_down = True
        if self.scenario.upload_error is not None:
            raise self.scenario.upload_error

    def notify(self) -> None:
        self.journal.events.append(("notify",))

    def send(self, out: dict[str, Any]) -> None:
        self.journal.events.append(("send", copy.deepcopy(out)))

    def abort(self, rid: str) -> None:
        self.journal.aborted.append(rid)


def _start(scenario: Scenario) -> tuple[World, Journal]:
    journal = Journal(chunks_after=copy.deepcopy(scenario.chunks))
    return World(scenario, journal), journal


def _end(journal: Journal) -> Journal:
    journal.aborted.sort()
    return journal


def incumbent(scenario: Scenario) -> Journal:
    """Run `DecodeWorkerHandler`'s processor over the scenario."""
    world, journal = _start(scenario)

    async def uploader_upload(index: int, meta_info: dict[str, Any]) -> None:
        world.upload(index, meta_info)

    @asynccontextmanager
    async def unwatched(
        _id_future: Any, _context: Any, _rid: Any, *, request_ids: set[str]
    ) -> AsyncIterator[asyncio.Future[None]]:
        # The set lives in the processor's frame; its last state is the account of live choices.
        try:
            yield asyncio.get_running_loop().create_future()
        finally:
            journal.unfinished_ids = request_ids

    handler = DecodeWorkerHandler.__new__(DecodeWorkerHandler)
    handler.serving_mode = (
        DisaggregationMode.DECODE
        if scenario.disaggregated_decode
        else DisaggregationMode.AGGREGATED
    )
    handler.shutdown_event = SimpleNamespace(is_set=lambda: world.shutting_down)
    handler.config = SimpleNamespace(server_args=SimpleNamespace(served_model_name=MODEL))
    handler.engine = SimpleNamespace(
        tokenizer_manager=SimpleNamespace(abort_request=lambda *, rid, abort_all: world.abort(rid))
    )
    handler._cancellation_monitor = unwatched
    context = SimpleNamespace(
        id=lambda: CONTEXT_ID,
        is_stopped=lambda: world.stopped,
        notify_first_token=world.notify,
    )
    uploader = SimpleNamespace(upload_choice=uploader_upload) if scenario.uploads else None
    submitted = "submitted-rid" if scenario.ordered else None

    async def source() -> AsyncIterator[Chunk]:
        for chunk in world.feed():
            yield chunk

    def process() -> AsyncIterator[dict[str, Any]]:
        if scenario.mode == "tokens":
            return handler._process_token_stream(
                source(),
                context,
                scenario.return_tokens_as_token_ids,
                user_stop_token_ids=scenario.user_stop_token_ids,
                metadata_uploader=uploader,
                submitted_request_id=submitted,
                report_kv_cache_hit=scenario.report_kv_cache_hit,
            )
        if scenario.mode == "text":
            return handler._process_text_stream(
                source(),
                context,
                request=scenario.request,
                user_stop_token_ids=scenario.user_stop_token_ids,
                metadata_uploader=uploader,
                submitted_request_id=submitted,
            )
        return handler._process_native_generate_stream(
            source(),
            context,
            submitted_request_id=submitted,
            internal_request_id=scenario.internal_request_id,
            response_request_id=scenario.response_request_id,
            report_kv_cache_hit=scenario.report_kv_cache_hit,
        )

    async def consume() -> None:
        try:
            async for out in process():
                world.send(out)
        except Exception as error:
            journal.error = (type(error), error.args)

    # A loop factory, not the policy: SGLang sets uvloop's, trio-asyncio its own.
    with (
        mock.patch.object(decode_handler, "time", SimpleNamespace(time=world.now)),
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
    ):
        runner.run(consume())
    return _end(journal)


def make_responses(scenario: Scenario, world: World) -> Responses:
    report = scenario.report_kv_cache_hit and not scenario.disaggregated_decode
    if scenario.mode == "tokens":
        return TokenResponses(
            choices=scenario.choices,
            wants_logprobs=scenario.wants_logprobs,
            return_tokens_as_token_ids=scenario.return_tokens_as_token_ids,
            user_stop_token_ids=scenario.user_stop_token_ids,
            report_kv_cache_hit=report,
            uploads=scenario.uploads,
            notify_first_token=world.notify,
        )
    if scenario.mode == "text":
        return TextResponses(
            context_id=CONTEXT_ID,
            model=MODEL,
            request=scenario.request,
            choices=scenario.choices,
            user_stop_token_ids=scenario.user_stop_token_ids,
            uploads=scenario.uploads,
            notify_first_token=world.notify,
            now=world.now,
        )
    return NativeResponses(
        choices=scenario.choices,
        internal_request_id=scenario.internal_request_id,
        response_request_id=scenario.response_request_id,
        report_kv_cache_hit=report,
        notify_first_token=world.notify,
    )


def ours(scenario: Scenario) -> Journal:
    """Run our converter over the scenario, as a request task would."""
    world, journal = _start(scenario)
    responses = make_responses(scenario, world)
    try:
        for chunk in world.feed():
            if world.stopped:
                responses.observe(chunk)
                if not scenario.ordered:
                    while responses.unfinished_ids:
                        world.abort(responses.unfinished_ids.pop())
                continue
            out = responses.convert(chunk, shutting_down=world.shutting_down)
            if responses.upload_due(chunk):
                try:
                    world.upload(choice_index(chunk), chunk["meta_info"])
                except BaseException:
                    chunk["meta_info"].clear()
                    raise
                responses.uploaded(chunk, shutting_down=world.shutting_down)
            if out is not None:
                world.send(out)
    except Exception as error:
        journal.error = (type(error), error.args)
    journal.unfinished_ids = set(responses.unfinished_ids)
    return _end(journal)
