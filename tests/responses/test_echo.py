# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rule 119: what a queue abort repeats is not sent again.

The echoes are SGLang's own: `TokenizerManager._handle_abort_req` on a state with output.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from dynamo.llm import HttpError
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.tokenizer_manager import ReqState, TokenizerManager

from tests.responses.chunks import RID, chunk, logprobs
from tests.responses.oracle import Chunk, Scenario, incumbent, ours
from trio_worker.responses import coalesce

QUEUE_ABORT = {"type": "abort", "message": "Abort in waiting queue"}


def queue_abort(
    ids: list[int],
    text: str = "",
    *,
    return_logprob: bool = False,
    finished_reason: dict[str, Any] | None = None,
) -> Chunk:
    """SGLang's last chunk for a request that is aborted in the queue after this output."""
    state = ReqState(
        out_list=[],
        finished=False,
        event=SimpleNamespace(set=lambda: None),
        obj=SimpleNamespace(
            stream=True,
            return_logprob=return_logprob,
            return_text_in_logprobs=False,
            return_flat_raw_top_logprobs=False,
            top_logprobs_num=0,
            token_ids_logprob=None,
        ),
        time_stats=SimpleNamespace(set_finished_time=lambda: None, get_e2e_latency=lambda: 0.5),
    )
    state.output_ids = list(ids)
    state.append_text(text)
    state.output_token_logprobs = logprobs(ids)["output_token_logprobs"]
    manager = TokenizerManager.__new__(TokenizerManager)
    manager.rid_to_state = {RID: state}
    manager.incremental_streaming_output = True
    manager.config_value = lambda name: "default"
    manager._handle_abort_req(AbortReq(rid=RID, finished_reason=finished_reason))
    echo: Chunk = state.out_list[0]
    return echo


def token_ids(chunks: list[Chunk], **options: Any) -> list[list[int]]:
    return [out["token_ids"] for out in ours(Scenario(chunks, **options)).sent]


def texts(chunks: list[Chunk], **options: Any) -> list[str]:
    sent = ours(Scenario(chunks, mode="text", **options)).sent
    return [out["choices"][0]["delta"]["content"] for out in sent]


def test_sglang_repeats_the_last_token_and_the_whole_text() -> None:
    """The defect is still there; without it this module has no reason to be."""
    echo = queue_abort([5, 6, 7], "abc", return_logprob=True)
    assert echo["output_ids"] == [7]
    assert echo["text"] == "abc"
    assert echo["meta_info"]["completion_tokens"] == 3
    assert len(echo["meta_info"]["output_token_logprobs"]) == 3
    chunks = [chunk([5, 6], "ab", total=2), chunk([7], "c", total=3), echo]
    sent = incumbent(Scenario(chunks)).sent
    assert [out["token_ids"] for out in sent] == [[5, 6], [7], [7]]


def test_the_echo_ends_the_stream_without_tokens_or_text() -> None:
    chunks = [
        chunk([5, 6], "ab", total=2),
        chunk([7], "c", total=3),
        queue_abort([5, 6, 7], "abc"),
    ]
    assert token_ids(chunks) == [[5, 6], [7], []]
    assert texts(chunks) == ["ab", "c", ""]
    last = ours(Scenario(chunks)).sent[-1]
    assert last == {"index": 0, "finish_reason": "cancelled", "token_ids": []}


@pytest.mark.parametrize("merge", [coalesce, "sglang"])
def test_output_that_waited_before_the_echo_is_kept(merge: Any) -> None:
    if merge == "sglang":

        def merge(chunks: list[Chunk]) -> Chunk:
            merged: Chunk = TokenizerManager._coalesce_streaming_chunks(None, chunks, RID)
            return merged

    echo = queue_abort([5, 6, 7, 8], "the abcd", return_logprob=True)
    pending = [
        chunk([6], "b", total=2, meta=logprobs([6])),
        chunk([7, 8], "cd", total=4, meta=logprobs([7, 8])),
    ]
    first = chunk([5], "the a", meta=logprobs([5]))
    chunks = [first, merge([*pending, echo])]
    assert token_ids(chunks, wants_logprobs=True) == [[5], [6, 7, 8]]
    assert texts(chunks) == ["the a", "bcd"]
    log_probs = [out["log_probs"] for out in ours(Scenario(chunks, wants_logprobs=True)).sent]
    expected = [entry[0] for entry in logprobs([5, 6, 7, 8])["output_token_logprobs"]]
    assert [*log_probs[0], *log_probs[1]] == expected

    everything_waited = [merge([first, *pending, echo])]
    assert token_ids(everything_waited) == [[5, 6, 7, 8]]
    assert texts(everything_waited) == ["the abcd"]


def test_logprobs_of_the_echo_are_dropped_with_its_token() -> None:
    chunks = [
        chunk([5], "a", meta=logprobs([5], top=2)),
        queue_abort([5], "a", return_logprob=True),
    ]
    sent = ours(Scenario(chunks, wants_logprobs=True)).sent
    assert "log_probs" in sent[0]
    assert "log_probs" not in sent[1]
    assert "top_logprobs" not in sent[1]


def test_never_run_means_nothing_to_repeat() -> None:
    chunks = [queue_abort([])]
    assert ours(Scenario(chunks)) == incumbent(Scenario(chunks))
    assert token_ids(chunks) == [[]]
    assert texts(chunks) == [""]


def test_an_error_in_the_echo_is_still_an_error() -> None:
    reason = {"type": "abort", "status_code": 503, "message": "Request waiting timeout reached."}
    chunks = [chunk([5], "a"), queue_abort([5], "a", finished_reason=reason)]
    for mode in ("tokens", "text"):
        error = ours(Scenario(chunks, mode=mode)).error
        assert error == (HttpError, ("HTTP 503: Request waiting timeout reached.",))


def test_choices_are_counted_apart() -> None:
    def of(index: int, made: Chunk) -> Chunk:
        return {**made, "index": index}

    chunks = [
        of(0, chunk([5], "a")),
        of(1, chunk([8], "x")),
        of(1, chunk([9], "y", total=2)),
        of(0, queue_abort([5], "a")),
        of(1, queue_abort([8, 9], "xy")),
    ]
    assert token_ids(chunks, choices=2) == [[5], [8], [9], [], []]
    assert texts(chunks, choices=2) == ["a", "x", "y", "", ""]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(chunk([6], "b", total=3, finish=QUEUE_ABORT), id="a new last token"),
        pytest.param(chunk([6], "b", total=2, finish={"type": "stop"}), id="not an abort"),
        pytest.param(chunk([6], "b", total=0, finish=QUEUE_ABORT), id="a count of nothing"),
        pytest.param(chunk([6], "b", total=1, finish=QUEUE_ABORT), id="a count behind"),
        pytest.param(chunk([6], "b", total=9, finish=QUEUE_ABORT), id="a count beyond"),
    ],
)
def test_other_last_chunks_are_sent_as_they_are(last: Chunk) -> None:
    chunks = [chunk([4, 5], "a"), last]
    assert token_ids(chunks) == [[4, 5], [6]]
    assert texts(chunks) == ["a", "b"]


def test_a_token_without_a_count_is_not_an_echo() -> None:
    """SGLang's placeholder for a request that failed at once."""
    chunks = [chunk([6], "b", total=0, finish=QUEUE_ABORT)]
    assert token_ids(chunks) == [[6]]
    assert texts(chunks) == ["b"]


def test_a_first_token_merged_with_its_echo_is_notified() -> None:
    merged = coalesce([chunk([5], "a"), queue_abort([5], "a")])
    for mode in ("tokens", "text"):
        events = ours(Scenario([merged], mode=mode)).events
        assert [event[0] for event in events] == ["notify", "send"]
