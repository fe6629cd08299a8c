# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""An embedding worker on the real engine, behind the real frontend."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
import trio

from tests.e2e.encoder import HIDDEN
from tests.e2e.served import Ending, Served
from tests.e2e.test_health import CANARY_S
from tests.e2e.test_stopping import assert_clean
from trio_worker.quickstart.chat import Answer, get, post

LEASE_PROBE = "lease_probe"
"""`trio_worker.roles.endpoints.LEASE_PROBE`, whose import would cost half a minute here."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


async def embed(served: Served, what: Any, **options: Any) -> Answer:
    """Trio. One request."""
    headers = options.pop("headers", None)
    payload = {"model": served.model, "input": what, **options}
    return await post(served.port, "/v1/embeddings", payload, headers=headers)


def vectors(answer: Answer) -> list[list[float]]:
    assert answer.status == 200, answer.errors
    return [one["embedding"] for one in answer.body["data"]]


async def test_a_batch_has_the_embeddings_of_its_parts(encoder: Served) -> None:
    texts = ["the cat", "a dog in the sea"]
    together = await embed(encoder, texts)
    alone = [await embed(encoder, text) for text in texts]
    assert together.usage == {"prompt_tokens": 11, "total_tokens": 11}
    for first, second in zip(vectors(together), (vectors(one)[0] for one in alone), strict=True):
        assert len(first) == HIDDEN
        assert first == pytest.approx(second, abs=0.02)
    assert vectors(together)[0] != pytest.approx(vectors(together)[1], abs=0.02)


async def test_tokens_dimensions_and_base64(encoder: Served) -> None:
    (whole,) = vectors(await embed(encoder, [5, 6, 7]))
    (short,) = vectors(await embed(encoder, [5, 6, 7], dimensions=4))
    assert short == pytest.approx(whole[:4])
    (text,) = vectors(await embed(encoder, [5, 6, 7], dimensions=4, encoding_format="base64"))
    assert struct.unpack("<4f", base64.b64decode(str(text))) == pytest.approx(short)


async def test_a_request_that_asks_for_too_much_is_the_clients_fault(encoder: Served) -> None:
    assert (await embed(encoder, "the cat", dimensions=HIDDEN + 1)).status == 400
    assert len(vectors(await embed(encoder, "the cat"))) == 1


async def test_b21_requests_of_one_trace_are_all_served(encoder: Served) -> None:
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await embed(encoder, ["the cat", "a dog"] * 8, headers=TRACE))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert [answer.status for answer in answers] == [200] * 8


async def test_metrics_of_embeddings(encoder: Served) -> None:
    before = await encoder.metric("dynamo_embedding_batch_size_sum", model=encoder.model)
    vectors(await embed(encoder, ["the cat", "a dog", "a fish"]))
    after = await encoder.metric("dynamo_embedding_batch_size_sum", model=encoder.model)
    assert after >= before + 3  # a canary may come between


async def test_an_endpoint_that_is_never_busy_is_served_too(encoder: Served) -> None:
    instances = [unquote(path.name) for path in encoder.cluster.registered()]
    for endpoint in ("generate", LEASE_PROBE):
        assert any(f"/{endpoint}/" in name for name in instances), instances
    _, body = await get(encoder.system_port, "/health")
    assert json.loads(body)["endpoints"] == {"generate": "ready", LEASE_PROBE: "ready"}


async def test_canary_embeds_when_nobody_asks(encoder: Served) -> None:
    async def admitted() -> int:
        return int((await encoder.inside())["counts"]["admitted"])

    before = await admitted()
    with trio.fail_after(CANARY_S):
        while await admitted() == before:
            await trio.sleep(0.1)
    status, _ = await get(encoder.system_port, "/health")
    assert status == 200


@pytest.mark.timeout(120)
# The last here, not of the session: nobody else needs this cluster, and it takes memory.
def test_it_leaves_nothing(encoder: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("encoder"))
