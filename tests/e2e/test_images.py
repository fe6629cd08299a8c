# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""An image worker on SGLang's real generator, behind the real frontend."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.e2e.served import Ending, Served
from tests.e2e.test_stopping import assert_clean
from trio_worker.quickstart.chat import Answer, post

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

LONG = {"size": "96x96", "nvext": {"num_inference_steps": 40, "seed": 1}}
"""A generation of a few seconds."""

GENEROUS_S = 100.0


async def paint(served: Served, **options: Any) -> Answer:
    """Trio. One small picture, unless `options` say otherwise."""
    payload = {
        "model": served.model,
        "prompt": "a cat",
        "size": "64x64",
        "response_format": "b64_json",
        "nvext": {"num_inference_steps": 1, "seed": 1},
        **options,
    }
    return await post(served.port, "/v1/images/generations", payload)


async def generator(served: Served) -> dict[str, int]:
    """Trio. What the worker tells of its generator."""
    return dict((await served.inside())["engine"])


def picture(answer: Answer) -> bytes:
    assert answer.status == 200, answer.errors
    return base64.b64decode(answer.body["data"][0]["b64_json"])


async def test_the_same_seed_paints_the_same_picture(painter: Served) -> None:
    first, second = picture(await paint(painter)), picture(await paint(painter))
    assert first.startswith(b"\x89PNG")
    assert first == second
    seed = {"num_inference_steps": 1, "seed": 2}
    assert picture(await paint(painter, nvext=seed)) != first


async def test_a_size_that_is_none_is_the_clients_fault(painter: Served) -> None:
    answer = await paint(painter, size="huge")
    assert answer.status == 400
    assert "size must be '<width>x<height>'" in answer.errors[0]


async def test_b17_many_at_once_are_all_painted(painter: Served) -> None:
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await paint(painter))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert len({picture(answer) for answer in answers}) == 1


async def test_b18_who_leaves_is_not_waited_for_but_its_generation_is(painter: Served) -> None:
    before = await generator(painter)
    with trio.fail_after(GENEROUS_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: paint(painter, **LONG))
            while not (await generator(painter))["generating"]:
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        while (await painter.inside())["counts"]["live"]:
            await trio.sleep(0.05)
        assert (await generator(painter))["left"] == before["left"] + 1
        picture(await paint(painter))
    after = await generator(painter)
    assert after["generated"] == before["generated"] + 2


# The last here, not of the session: nobody else needs this cluster, and it takes memory.
def test_it_leaves_nothing(painter: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("painter"))
