# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import math
from array import array

from tests.standin.harness import ALPHABET, Bench, embedding_request, request
from trio_worker.standin.request import Logprobs
from trio_worker.standin.wire import (
    Row,
    embedding_columns,
    embedding_of,
    logprob_columns,
    logprob_of,
    relevance_of,
)


def row(one: object, ids: list[int], **fields: object) -> Row:
    return Row(one, array("q", ids), len(ids), first=bool(fields.pop("first", False)))  # type: ignore[arg-type]


def test_every_column_is_as_long_as_the_message() -> None:
    bench = Bench()
    bench.submit(request("a", max_new_tokens=5))
    bench.steps(2)
    bench.submit(request("b", max_new_tokens=3), request("c", max_new_tokens=0))
    bench.run()
    for message in bench.messages:
        size = len(message["rids"])
        for name, column in message.items():
            if column is not None and not name.startswith("spec_"):
                assert len(column) == size, name


def test_a_message_does_not_change_afterwards() -> None:
    bench = Bench()
    bench.submit(request("a", max_new_tokens=9), request("b", max_new_tokens=9))
    bench.steps(2)
    before = [*bench.messages[-1]["rids"]], [*bench.messages[-1]["completion_tokens"]]
    bench.run()
    assert (bench.messages[1]["rids"], bench.messages[1]["completion_tokens"]) == before


def test_without_logprobs_the_columns_are_absent() -> None:
    columns = logprob_columns(3, [row(request(), [70])], ALPHABET, with_prompt=True)
    assert set(columns.values()) == {None}
    assert len(columns) == 12


def test_logprobs_of_chosen_ids() -> None:
    one = request(logprobs=Logprobs(token_ids=[7, 8]))
    columns = logprob_columns(1, [row(one, [70, 71])], ALPHABET, with_prompt=True)
    assert columns["output_token_ids_logprobs_idx"] == [[], [[7, 8], [7, 8]]]
    assert columns["output_token_ids_logprobs_val"][1][0] == [logprob_of(7), logprob_of(8)]
    assert columns["output_token_logprobs_val"] == [[], [logprob_of(70), logprob_of(71)]]


def test_top_logprobs_begin_with_the_token_and_fall() -> None:
    one = request(logprobs=Logprobs(top=4))
    columns = logprob_columns(0, [row(one, [70])], ALPHABET, with_prompt=True)
    [values] = columns["output_top_logprobs_val"][0]
    [ids] = columns["output_top_logprobs_idx"][0]
    assert ids[0] == 70
    assert len(set(ids)) == 4
    assert values == sorted(values, reverse=True)
    assert values[0] == logprob_of(70)


def test_a_decode_server_does_not_send_the_prompts_logprobs() -> None:
    one = request(logprobs=Logprobs(start=0))
    for with_prompt, count in ((True, 3), (False, 0)):
        columns = logprob_columns(
            0, [row(one, [70], first=True)], ALPHABET, with_prompt=with_prompt
        )
        assert len(columns["input_token_logprobs_val"][0]) == count


def test_an_embedding_is_a_unit_vector_of_its_prompt() -> None:
    vector = embedding_of([1, 2, 3], 16)
    assert len(vector) == 16
    assert math.isclose(sum(x * x for x in vector), 1.0)
    assert vector == embedding_of([1, 2, 3], 16)
    assert vector != embedding_of([1, 2, 4], 16)


def test_a_document_scores_by_what_it_shares_with_the_query() -> None:
    segments = [0, 0, 1, 1, 1]
    assert relevance_of([1, 2, 1, 2, 3], segments) == 1.0
    assert relevance_of([1, 2, 1, 4, 5], segments) == 0.5
    assert relevance_of([1, 2, 3, 4, 5], segments) == 0.0


def test_a_failed_embedding_is_empty() -> None:
    failed = Row(embedding_request(), array("q"), 0, first=True, finished={"type": "abort"})
    assert embedding_columns([failed])["embeddings"] == [[]]
