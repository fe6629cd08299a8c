# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Merging of pending outputs against SGLang's own."""

import copy
import logging
import random

import pytest
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from tests.responses.chunks import chunk, logprobs, random_stream
from tests.responses.oracle import Chunk
from trio_worker.responses import coalesce


def sglangs(chunks: list[Chunk], customized: list[str] | None = None) -> Chunk:
    merged: Chunk = TokenizerManager._coalesce_streaming_chunks(None, chunks, "rid", customized)
    return merged


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize("seed", range(100))
def test_equals_sglangs(seed: int, mode: str) -> None:
    rng = random.Random(seed)
    # Not legacy: SGLang's own streams always have ids.
    chunks = [c for c in random_stream(seed, mode).clean.chunks if "output_ids" in c]
    with_text = sum("text" in c for c in chunks)
    if with_text * 2 < len(chunks):
        chunks = [c for c in chunks if "text" not in c]
    else:
        chunks = [c for c in chunks if "text" in c]
    for number, each in enumerate(chunks):
        if rng.random() < 0.7:
            each["meta_info"]["entropy"] = [number, rng.random()]
        if rng.random() < 0.3:
            each["meta_info"]["output_token_sampling_mask"] = [[number]]
    before = copy.deepcopy(chunks)
    for last in range(1, len(chunks) + 1):
        for customized in ([], ["entropy"], ["entropy", "never"]):
            merged = coalesce(chunks[:last], customized)
            assert merged == sglangs(chunks[:last], customized)
    assert chunks == before


def test_what_is_per_token_is_joined_and_the_rest_is_the_last_ones() -> None:
    merged = coalesce(
        [
            chunk([1, 2], "ab", total=2, meta={**logprobs([1, 2]), "entropy": [0.1, 0.2]}),
            chunk([], "", total=2, cached=9, meta={"entropy": []}),
            chunk([3], "c", total=3, finish={"type": "stop"}, meta={"entropy": [0.3]}, extra=1),
        ],
        ["entropy"],
    )
    assert merged == chunk(
        [1, 2, 3],
        "abc",
        total=3,
        finish={"type": "stop"},
        meta={**logprobs([1, 2]), "entropy": [0.1, 0.2, 0.3]},
        extra=1,
    )


def test_the_first_chunks_time_stamp_stays() -> None:
    first = chunk([1], "a", meta={"response_sent_to_client_ts": 7.0})
    merged = coalesce([first, chunk([2], "b"), chunk([3], "c")])
    assert merged["meta_info"]["response_sent_to_client_ts"] == 7.0


def test_a_single_chunk_is_left_alone() -> None:
    single = chunk([1], "a")
    assert coalesce([single]) is single


def test_no_backlog_warning(caplog: pytest.LogCaptureFixture) -> None:
    chunks = [chunk([i], "a", total=i) for i in range(30)]
    with caplog.at_level(logging.DEBUG):
        merged = coalesce(chunks)
        assert caplog.messages == []
        assert merged == sglangs(chunks)
    assert "Streaming backlog" in caplog.text


def test_an_abort_echo_merges_into_chunks_without_text() -> None:
    """Without a tokenizer only the echo has a text, and SGLang fails on it."""
    chunks = [chunk([1]), chunk([1], "", finish={"type": "abort"})]
    with pytest.raises(KeyError, match="text"):
        sglangs(chunks)
    assert coalesce(chunks) == chunk([1, 1], "", total=1, finish={"type": "abort"})
