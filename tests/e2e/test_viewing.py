# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""An encode worker before a multimodal worker, both on the real engine."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import pytest
import trio
from PIL import Image

from tests.e2e.served import Ending, Served
from tests.e2e.test_stopping import assert_clean
from trio_worker.quickstart.chat import Answer, post

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

LONG = 1500
"""Tokens of an answer that takes seconds."""

GENEROUS_S = 100.0


def picture(color: tuple[int, int, int]) -> str:
    """A data URL."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), color).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


RED, BLUE = picture((250, 10, 10)), picture((10, 10, 250))


SHORT = 12
"""Tokens of any other answer."""


async def look(served: Served, url: str, tokens: int = SHORT, **options: Any) -> Answer:
    """Trio. What the model has to say of one picture."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    payload = {
        "model": served.model,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
    }
    return await post(served.port, "/v1/chat/completions", payload, **options)


def said(answer: Answer) -> str:
    assert answer.status == 200, answer.errors
    assert not answer.errors
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == SHORT
    return answer.text


async def cached(viewer: Served) -> list[float]:
    """Trio. Hits, misses and entries of the encode worker's cache."""
    names = ("hits_total", "misses_total", "entries")
    return [await viewer.metric(f"dynamo_component_embedding_cache_{name}") for name in names]


async def test_the_answer_is_of_the_picture_which_is_encoded_once(viewer: Served) -> None:
    assert await cached(viewer) == [0, 0, 0]
    red, again, blue = [said(await look(viewer, url)) for url in (RED, RED, BLUE)]
    assert len(red) > 0
    assert red == again
    assert red != blue
    assert await cached(viewer) == [1, 2, 2]


async def test_who_leaves_in_mid_stream_is_not_served_any_longer(viewer: Served) -> None:
    async def live() -> int:
        return int((await viewer.inside())["counts"]["live"])

    with trio.fail_after(GENEROUS_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look, viewer, RED, LONG)
            while not await live():
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        while await live():
            await trio.sleep(0.02)
        said(await look(viewer, BLUE))


@pytest.mark.timeout(120)
# The last here, not of the session: nobody else needs this cluster, and it takes memory.
def test_it_leaves_nothing(viewer: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("viewer"), workers=2)
