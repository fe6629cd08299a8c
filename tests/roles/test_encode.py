# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.roles.encode: what goes to the next worker, what comes back, who owns transfers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio_asyncio
from trio.testing import MockClock

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
import torch
from dynamo.common.multimodal import TransferRequest
from dynamo.llm.exceptions import EngineShutdown, HttpError
from dynamo.sglang.request_handlers import MultimodalEncodeWorkerHandler

from compat.loop import WorkerLoop
from tests.fakes.context import FakeContext
from tests.fakes.journal import Journal
from tests.fakes.multimodal import FakeClient, OtherWorker
from tests.roles.rig import Rig, open_rig
from trio_worker import constants
from trio_worker.responses import merge_forwarded
from trio_worker.roles.encode import EncodeRequests

IMAGE = 99
REQUEST = {
    "token_ids": [1, IMAGE, 2, IMAGE, 3],
    "stop_conditions": {"max_tokens": 8},
    "sampling_options": {"temperature": 0.5},
    "multi_modal_data": {"image_url": [{"Url": "http://a/1.png"}, {"Url": "http://a/2.png"}]},
}
ANSWERS = (
    json.dumps({"token_ids": [7], "index": 0, "text": "", "finished": False}),
    json.dumps({"token_ids": [8], "index": 0, "text": "x", "finished": False}),
    json.dumps(
        {"token_ids": [9], "index": 0, "text": "", "finished": True, "finish_reason": "stop"}
    ),
)


class Sender:
    """Dynamo's embedding sender; its transfers end when the test says so."""

    def __init__(self, journal: Journal, taken: bool) -> None:
        self._journal = journal
        self._taken = taken
        self.transfers: list[asyncio.Future[None]] = []
        self.shapes: list[tuple[int, ...]] = []

    async def send_embeddings(self, embeddings: Any) -> tuple[Any, Any]:
        self._journal.record("embeddings", "offered")
        self.shapes.append(tuple(embeddings.shape))
        transfer = asyncio.get_running_loop().create_future()
        if self._taken:
            transfer.set_result(None)
        self.transfers.append(transfer)
        request = TransferRequest(
            embeddings_shape=list(embeddings.shape),
            embedding_dtype_str="float32",
            serialized_request="here",
        )
        return request, transfer


def encode_handler(
    handler_class: type, journal: Journal, other: OtherWorker, *, taken: bool, encodes: float
) -> Any:
    """A handler as its constructor leaves it, without an encoder."""
    handler = handler_class.__new__(handler_class)
    handler.pd_worker_client = FakeClient(journal, other)
    handler.embedding_sender = Sender(journal, taken)
    handler.encoder = None
    handler.image_token_id, handler.video_token_id = IMAGE, None
    handler._embedding_cache = handler._image_loader = handler._cache_publisher = None
    handler._max_input_token_id = 50

    async def encode(media: list[Any], _modality: Any) -> tuple[Any, Any, dict[str, Any]]:
        journal.record("encoder", "encoding")
        await asyncio.sleep(encodes)
        return [[1, 2, 2]] * len(media), torch.ones((len(media) * 4, 8)), {}

    handler._encode_media = encode
    return handler


def making(
    other: OtherWorker, *, taken: bool = True, encodes: float = 0.1
) -> Callable[[WorkerLoop, Journal], tuple[None, Any]]:
    def make(_loop: WorkerLoop, journal: Journal) -> tuple[None, Any]:
        return None, encode_handler(EncodeRequests, journal, other, taken=taken, encodes=encodes)

    return make


async def incumbent(journal: Journal, request: Any, other: OtherWorker) -> tuple[list[Any], Any]:
    """Trio. What the incumbent's handler answers, and the handler."""
    handler = encode_handler(MultimodalEncodeWorkerHandler, journal, other, taken=True, encodes=0.1)

    async def read() -> list[Any]:
        context = FakeContext(journal)
        return [answer async for answer in handler.generate(request, context)]

    return await trio_asyncio.aio_as_trio(read)(), handler


def waiting(rig: Rig) -> int:
    """Feeders that are still at work."""
    return len(rig.feeders)


@pytest.mark.parametrize(
    "answers",
    [
        ANSWERS,
        (*ANSWERS[:1], "no JSON", {"token_ids": [1], "finish_reason": "length", "finished": True}),
        (json.dumps({"token_ids": [], "finish_reason": "error", "error": "no", "finished": True}),),
    ],
)
async def test_question_and_answers_are_the_incumbents(
    answers: Any, autojump_clock: MockClock
) -> None:
    other = OtherWorker(answers=answers)
    async with open_rig(making(other)) as rig:
        call = rig.call(dict(REQUEST))
        await call.finish()
        assert call.error is None
        expected, handler = await incumbent(rig.journal, dict(REQUEST), other)
        client = rig.handler.pd_worker_client
        assert call.answers == expected
        assert client.requests == handler.pd_worker_client.requests
        assert client.contexts == [call.context]
        assert rig.handler.embedding_sender.shapes == handler.embedding_sender.shapes == [(8, 8)]
        assert waiting(rig) == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"token_ids": [1, IMAGE, 3]}, ValueError),
        ({"token_ids": [1, 77, IMAGE, IMAGE]}, HttpError),
        ({"multi_modal_data": {}}, ValueError),
    ],
)
async def test_refusals_are_the_incumbents(
    change: dict[str, Any], error: type[Exception], autojump_clock: MockClock
) -> None:
    request = {**REQUEST, **change}
    async with open_rig(making(OtherWorker())) as rig:
        call = rig.call(request)
        await call.finish()
        assert type(call.error) is error
        with pytest.raises(error) as theirs:
            await incumbent(rig.journal, request, OtherWorker())
        assert str(call.error) == str(theirs.value)
        assert rig.journal.of("other worker asked") == []
        assert waiting(rig) == 0


@pytest.mark.parametrize(
    "error", [EngineShutdown("leaving"), RuntimeError("gone"), HttpError(400, "no")]
)
@pytest.mark.parametrize("late", [False, True])
async def test_an_error_downstream_is_passed_on_as_it_is(
    error: Exception, late: bool, autojump_clock: MockClock
) -> None:
    other = OtherWorker(answers=ANSWERS[:1], error=error) if late else OtherWorker(refusal=error)
    async with open_rig(making(other)) as rig:
        call = rig.call(dict(REQUEST))
        await call.finish()
        assert call.error is error
        assert len(call.answers) == late


@pytest.mark.parametrize("at", [0.05, 0.15, 0.45])
@pytest.mark.parametrize("end", ["stop", "shutdown"])
async def test_every_end_at_every_stage(end: str, at: float, autojump_clock: MockClock) -> None:
    """0.05 s: encoding. 0.15 s: the other worker is asked. 0.45 s: it answers."""
    other = OtherWorker(after=0.2, answers=ANSWERS[:1], holds=True)
    async with open_rig(making(other)) as rig:
        call = rig.call(dict(REQUEST))
        await trio.sleep(at)
        begun = trio.current_time()
        if end == "stop":
            call.context.stop()
        else:
            rig.live.migrate_all()
        await call.finish()
        assert trio.current_time() - begun < 1.2
        assert (type(call.error) is EngineShutdown) == (end == "shutdown")
        assert len(rig.journal.of("other worker asked")) == (at > 0.1)
        await trio.sleep(0.1)
        # What was answered is let go, so that the runtime sees its consumer gone. A client's stop
        # leaves it the drain to be taken.
        taken = at > 0.4 or (end == "stop" and at > 0.1)
        assert len(rig.journal.of("answers let go")) == taken
        assert waiting(rig) == 0


@pytest.mark.parametrize("end", ["by itself", "stop"])
async def test_a_transfer_is_awaited_however_its_request_ends(
    end: str, autojump_clock: MockClock
) -> None:
    """C56: the incumbent drops it unless the stream ended well."""
    other = OtherWorker(answers=ANSWERS, holds=end == "stop")
    async with open_rig(making(other, taken=False)) as rig:
        call = rig.call(dict(REQUEST))
        await trio.sleep(0.25)
        if end == "stop":
            call.context.stop()
            await call.finish()
        else:
            await trio.sleep(1)
        assert waiting(rig) == 1
        (transfer,) = rig.handler.embedding_sender.transfers
        rig.loop.call_soon(transfer.set_result, None)
        await trio.sleep(0.1)
        assert waiting(rig) == 0
        assert call.ended.is_set()


async def test_a_transfer_that_nobody_takes_is_given_up(autojump_clock: MockClock) -> None:
    async with open_rig(making(OtherWorker(refusal=RuntimeError("gone")), taken=False)) as rig:
        call = rig.call(dict(REQUEST))
        await trio.sleep(constants.EMBEDDINGS_SENT_S + 1)
        assert call.ended.is_set()
        assert repr(call.error) == "RuntimeError('gone')"
        assert waiting(rig) == 0
        (transfer,) = rig.handler.embedding_sender.transfers
        assert transfer.cancelled()


async def test_answers_that_wait_are_merged() -> None:
    chunks = [json.loads(answer) for answer in ANSWERS]
    first, last = merge_forwarded(chunks)
    assert first == {"token_ids": [7, 8], "index": 0, "text": "x", "finished": False}
    assert last == chunks[2]
    other_choice = {**chunks[0], "index": 1}
    assert merge_forwarded([chunks[0], other_choice]) == [chunks[0], other_choice]
