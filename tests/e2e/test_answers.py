# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the real engine answers through the real frontend: to the letter."""

from __future__ import annotations

import pytest
import trio

from tests.e2e.served import Served
from trio_worker.quickstart.chat import Answer
from trio_worker.quickstart.recitation import PASSAGE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ROOM = len(PASSAGE) + 100
"""More tokens than the passage has."""

BEGINNING = PASSAGE[:40]
"""Enough of the passage for a completion to go on from."""


def assert_is_passage(answer: Answer) -> None:
    assert (answer.status, answer.errors, answer.done) == (200, [], True)
    assert answer.text == PASSAGE
    assert answer.finish_reasons == {0: "stop"}


async def test_chat_streams_the_passage_word_for_word(served: Served) -> None:
    answer = await served.ask("Recite.", max_tokens=ROOM)
    assert_is_passage(answer)
    # Streamed, not collected: a token or a few of them at a time.
    assert len(answer.arrivals) > len(PASSAGE) / 20


async def test_chat_in_one_piece(served: Served) -> None:
    answer = await served.ask("Recite.", max_tokens=ROOM, stream=False)
    assert_is_passage(answer)
    # The end mark is a token too.
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == len(PASSAGE) + 1


@pytest.mark.parametrize("stream", [True, False])
async def test_completion_goes_on_where_the_prompt_ends(served: Served, stream: bool) -> None:
    answer = await served.complete(BEGINNING, max_tokens=ROOM, stream=stream)
    assert (answer.status, answer.errors, answer.done) == (200, [], True)
    assert BEGINNING + answer.text == PASSAGE


@pytest.mark.timeout(900)  # 86,000 tokens on a CPU that others use too
async def test_64_recitations_at_once(served: Served) -> None:
    answers = [Answer() for _ in range(64)]
    async with trio.open_nursery() as nursery:
        for number, answer in enumerate(answers):

            async def ask(number: int = number, answer: Answer = answer) -> None:
                await served.ask(f"Recite, please. ({number})", max_tokens=ROOM, answer=answer)

            nursery.start_soon(ask)
    for answer in answers:
        assert_is_passage(answer)


async def test_three_choices(served: Served) -> None:
    # The frontend refuses n > 1 at temperature 0; the model is sure of each token.
    answer = await served.ask("Recite.", max_tokens=ROOM, n=3, temperature=0.001)
    assert answer.errors == []
    assert answer.texts == dict.fromkeys(range(3), PASSAGE)
    assert answer.finish_reasons == dict.fromkeys(range(3), "stop")


async def test_logprobs_of_every_token(served: Served) -> None:
    answer = await served.ask("Recite.", max_tokens=50, logprobs=True, top_logprobs=3)
    assert answer.text == PASSAGE[:50]
    entries = [entry for logprobs in answer.logprobs for entry in logprobs["content"]]
    assert "".join(entry["token"] for entry in entries) == PASSAGE[:50]
    for entry in entries:
        assert -0.1 < entry["logprob"] <= 0  # probability above 0.9
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"]


async def test_max_tokens(served: Served) -> None:
    answer = await served.ask("Recite.", max_tokens=17, stream_options={"include_usage": True})
    assert answer.text == PASSAGE[:17]
    assert answer.finish_reasons == {0: "length"}
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 17
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + 17


@pytest.mark.parametrize("stream", [True, False])
async def test_stop_string(served: Served, stream: bool) -> None:
    stop = "keeps the weir"
    assert PASSAGE.count(stop) == 1
    answer = await served.ask("Recite.", max_tokens=ROOM, stop=[stop], stream=stream)
    assert answer.text == PASSAGE[: PASSAGE.index(stop)]
    assert answer.finish_reasons == {0: "stop"}


async def test_stop_token_id(served: Served) -> None:
    # A byte is a token: its id is the byte's value.
    answer = await served.ask("Recite.", max_tokens=ROOM, stop_token_ids=[ord(",")])
    assert answer.text.rstrip(",") == PASSAGE[: PASSAGE.index(",")]
    assert answer.finish_reasons == {0: "stop"}


async def test_end_mark_can_be_ignored(served: Served) -> None:
    answer = await served.ask("Recite.", max_tokens=len(PASSAGE) + 5, ignore_eos=True)
    assert answer.text.startswith(PASSAGE)
    assert answer.finish_reasons == {0: "length"}
