# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Token mode against the incumbent, case by case."""

from typing import Any

import pytest
from dynamo.llm import HttpError
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument

from tests.responses.chunks import (
    ERROR_ABORTS,
    PLAIN_ABORTS,
    RID,
    STOPS,
    chunk,
    logprobs,
)
from tests.responses.oracle import Scenario, incumbent, ours
from trio_worker.responses import TokenResponses, tokens

STOP = {"type": "stop", "matched": 2}
LENGTH = {"type": "length", "length": 3}
PROMPT_LOGPROBS = {
    "input_token_logprobs": [(None, 1, None), (-0.5, 4, "a"), (-2, 5, None), (-1.5, 6, "c")],
    "input_top_logprobs": [None, [(-0.25, 9, "b"), (-0.5, 4, "a")], None],
}

CASES: dict[str, Scenario] = {
    "plain": Scenario([chunk([1], total=1), chunk([2], total=2), chunk([3], finish=LENGTH)]),
    "several ids in a chunk": Scenario([chunk([1, 2, 3]), chunk([4, 5], finish=LENGTH, total=5)]),
    "one chunk": Scenario([chunk([1], finish=STOP)]),
    "nothing": Scenario([]),
    "cut": Scenario([chunk([1])]),
    "no output": Scenario([chunk([], finish=STOP)]),
    "empty chunks": Scenario(
        [chunk([]), chunk([1]), chunk([]), chunk([], finish=STOP, total=1), chunk([])]
    ),
    "text is ignored": Scenario([chunk([1], "a"), chunk([2], "b", finish=STOP)]),
    "logprobs": Scenario(
        [chunk([i], meta=logprobs([i])) for i in (5, 6)]
        + [chunk([7, 8], finish=STOP, meta=logprobs([7, 8]))],
        wants_logprobs=True,
    ),
    "top logprobs": Scenario(
        [chunk([5], meta=logprobs([5], top=3)), chunk([6], finish=STOP, meta=logprobs([6], top=2))],
        wants_logprobs=True,
    ),
    "top logprobs of some positions": Scenario(
        [
            chunk(
                [5, 6],
                meta={
                    "output_token_logprobs": [(-1, 5, None), (-0.0, 6, None)],
                    "output_top_logprobs": [None, [(-0.0, 6, None), (float("-inf"), 9, "x")]],
                },
            )
        ],
        wants_logprobs=True,
    ),
    "top logprobs as token ids": Scenario(
        [chunk([5], meta=logprobs([5], top=3))],
        wants_logprobs=True,
        return_tokens_as_token_ids=True,
    ),
    "logprobs asked for, none came": Scenario(
        [chunk([5], meta={"output_token_logprobs": []}), chunk([6], finish=STOP)],
        wants_logprobs=True,
    ),
    "broken logprobs": Scenario(
        [chunk([5], meta={"output_token_logprobs": [("x", 5, None)]})], wants_logprobs=True
    ),
    "prompt logprobs": Scenario(
        [
            chunk([5], meta={**logprobs([5]), **PROMPT_LOGPROBS}),
            chunk([6], finish=STOP, meta={**logprobs([6]), **PROMPT_LOGPROBS}),
        ],
        wants_logprobs=True,
    ),
    "parallel samples": Scenario(
        [
            chunk([1], index=1, rid="b"),
            chunk([2], index=0, rid="a"),
            chunk([], index=2, rid="c", finish=STOP),
            chunk([3], index=0, rid="a", total=2, cached=4),
            chunk([4], index=1, rid="b", total=2, finish=LENGTH),
            chunk([5], index=0, rid="a", total=3, finish={"type": "abort"}, cached=4),
        ],
        choices=3,
        report_kv_cache_hit=False,
    ),
    "usage changes": Scenario(
        [
            chunk([1], total=1, cached=0),
            chunk([2], total=2, cached=0),
            chunk([3], total=3, cached=8),
            chunk([4], total=4, cached=8),
            chunk([5], total=5, cached=None),
            chunk([6], total=6, cached=None, prompt=9),
            chunk([7], total=7, cached=0, finish=LENGTH),
        ]
    ),
    "usage complete only later": Scenario(
        [
            chunk([1], prompt=None),
            chunk([2], total=2, prompt=None),
            chunk([3], total=3),
            chunk([4], total=4),
        ]
    ),
    "prompt of no tokens": Scenario([chunk([1], prompt=0, cached=0), chunk([2], prompt=0)]),
    "retraction": Scenario(
        [
            chunk([1], total=1, cached=0),
            chunk([2], total=2, cached=8, meta={"num_retractions": 1}),
            chunk([3], total=3, cached=8, meta={"num_retractions": 1}, finish=LENGTH),
        ]
    ),
    "routed experts": Scenario(
        [
            chunk([1], meta={"routed_experts": None}),
            chunk([2], meta={"routed_experts": "AAEC"}, finish=STOP),
        ]
    ),
    "engine data": Scenario(
        [
            chunk([1], engine_data={"native": 1}),
            chunk([2], engine_data={}, meta={"routed_experts": ""}),
            chunk([3], engine_data=None),
            chunk(
                [4],
                engine_data={"native": 2, "routed_experts": "old", "kv_cache_hit": "old"},
                meta={"routed_experts": "AAEC", **PROMPT_LOGPROBS},
                finish=STOP,
            ),
        ],
        wants_logprobs=True,
    ),
    "no cache-hit report asked": Scenario([chunk([1], finish=STOP)], report_kv_cache_hit=False),
    "disaggregated decode": Scenario([chunk([1], finish=STOP)], disaggregated_decode=True),
    "unknown cache hit": Scenario([chunk([1], finish=STOP, cached=None)]),
    "unknown prompt length": Scenario([chunk([1], finish=STOP, prompt=None)]),
    "error after tokens": Scenario(
        [chunk([1]), chunk([2], finish={"type": "abort", "message": "m", "status_code": 500})]
    ),
    "abort in a shutdown": Scenario(
        [chunk([1], total=1), chunk([2], total=2), chunk([], total=2, finish={"type": "abort"})],
        shutdown_at=1,
    ),
    "error abort in a shutdown": Scenario(
        [chunk([1], finish={"type": "abort", "status_code": 400, "message": "m"})], shutdown_at=0
    ),
    "normal end in a shutdown": Scenario([chunk([1]), chunk([2], finish=STOP)], shutdown_at=0),
    "client leaves": Scenario([chunk([1]), chunk([2]), chunk([3], finish=STOP)], stop_at=1),
    "client leaves at the end": Scenario([chunk([1]), chunk([2], finish=STOP)], stop_at=1),
    "client leaves, choices speak late": Scenario(
        [chunk([1], index=i, rid=rid) for i, rid in enumerate("abca")]
        + [chunk([1], index=2, rid="c", finish=STOP)],
        stop_at=1,
        ordered=False,
        choices=4,
    ),
    "abort chunk after client left": Scenario(
        [chunk([1]), chunk([], finish={"type": "abort", "status_code": 500})],
        stop_at=1,
        shutdown_at=1,
    ),
    "no index, no id, no counts": Scenario(
        [
            {"output_ids": [1], "meta_info": {"finish_reason": None}},
            {"output_ids": [2], "meta_info": {"finish_reason": STOP}},
        ]
    ),
    "no ids": Scenario(
        [{"meta_info": {"finish_reason": None}}, {"meta_info": chunk()["meta_info"]}]
    ),
    "no ids at the end": Scenario([{"meta_info": {"finish_reason": STOP}}]),
    "null ids at the end": Scenario([{"output_ids": None, "meta_info": {"finish_reason": STOP}}]),
    "empty finish reason": Scenario([chunk([1], finish={})]),
    "index is null": Scenario([{**chunk([1], finish=STOP), "index": None}]),
    "unknown finish type": Scenario([chunk([1], finish={"type": "abortive"})]),
    "no metadata": Scenario([chunk([1]), {"output_ids": [2]}]),
    "null metadata": Scenario([{"output_ids": [2], "meta_info": None}]),
    "no finish reason": Scenario([{"output_ids": [2], "meta_info": {"id": RID}}]),
    "finish reason without type": Scenario([chunk([1], finish={"matched": 2})]),
    "finish reason as string": Scenario([chunk([1], finish="stop")]),  # type: ignore[arg-type]
    "upload": Scenario(
        [
            chunk([], meta={"early": True}),
            chunk([1], meta=logprobs([1]), engine_data={"native": 1}),
            chunk([2], meta={**logprobs([2]), "routed_experts": "AAEC"}, cached=5),
            chunk([3], finish=STOP, meta={**PROMPT_LOGPROBS, "routed_experts": "AAEC"}),
        ],
        uploads=True,
        wants_logprobs=True,
    ),
    "upload of two choices": Scenario(
        [
            chunk([1], index=1, rid="b"),
            chunk([2], index=0, rid="a", finish=STOP),
            chunk([3], index=1, rid="b", total=2, finish={"type": "abort"}),
        ],
        uploads=True,
        choices=2,
    ),
    "upload fails": Scenario(
        [chunk([1], index=0, rid="a"), chunk([2], index=1, rid="b", finish=STOP)],
        uploads=True,
        upload_error=OSError("bucket gone"),
        choices=2,
    ),
    "upload, shutdown before": Scenario(
        [chunk([1], finish={"type": "abort"})], uploads=True, shutdown_at=0
    ),
    "upload, shutdown meanwhile": Scenario(
        [chunk([1], finish={"type": "abort"})], uploads=True, shutdown_in_upload=True
    ),
    "upload of a finished one, shutdown meanwhile": Scenario(
        [chunk([1], finish=STOP)], uploads=True, shutdown_in_upload=True
    ),
    "upload, error abort": Scenario(
        [chunk([1], finish={"type": "abort", **ERROR_ABORTS["bad request"]})], uploads=True
    ),
    "upload, client left": Scenario([chunk([1], finish=STOP)], uploads=True, stop_at=0),
    **{
        f"stop reason: {name}": Scenario(
            [chunk([1], finish={"type": "stop", "matched": matched})], user_stop_token_ids=asked
        )
        for name, (matched, asked) in STOPS.items()
    },
    **{
        f"error abort: {name}": Scenario([chunk([1], "x", finish={"type": "abort", **details})])
        for name, details in ERROR_ABORTS.items()
    },
    **{
        f"plain abort: {name}": Scenario(
            [chunk([1]), chunk([2], total=2, finish={"type": "abort", **details})]
        )
        for name, details in PLAIN_ABORTS.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_incumbent(name: str) -> None:
    mine, theirs = ours(CASES[name]), incumbent(CASES[name])
    assert mine == theirs
    assert mine.exact() == theirs.exact()


def test_the_cases_end_as_their_names_say() -> None:
    """The oracle compares; this holds both of them to something outside."""
    assert ours(CASES["plain"]).sent == [
        {
            "index": 0,
            "token_ids": [1],
            "completion_usage": {
                "prompt_tokens": 7,
                "completion_tokens": 1,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
        },
        {"index": 0, "token_ids": [2]},
        {
            "index": 0,
            "finish_reason": "length",
            "token_ids": [3],
            "completion_usage": {
                "prompt_tokens": 7,
                "completion_tokens": 1,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            "engine_data": {"kv_cache_hit": {"prompt_tokens": 7, "reused_tokens": 3}},
        },
    ]
    assert [out["log_probs"] for out in ours(CASES["logprobs"]).sent] == [
        [-1.75],
        [-2.0],
        [-0.5, -0.75],
    ]
    assert ours(CASES["plain abort: queue"]).sent[-1]["finish_reason"] == "cancelled"
    errors: dict[str, type[Exception]] = {
        "abort in a shutdown": EngineShutdown,
        "error abort in a shutdown": EngineShutdown,
        "upload, shutdown meanwhile": EngineShutdown,
        "error abort: bad request": InvalidArgument,
        "error abort: unavailable": HttpError,
        "no metadata": KeyError,
    }
    for name, expected in errors.items():
        error = ours(CASES[name]).error
        assert error is not None
        assert error[0] is expected
    late = ours(CASES["client leaves, choices speak late"])
    assert late.aborted == ["a", "a", "b", "c"]


def test_no_chunk_is_searched_for_logprobs_that_nobody_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, Any]] = []

    def extract(meta_info: dict[str, Any], **_: Any) -> tuple[None, None]:
        calls.append(meta_info)
        return None, None

    monkeypatch.setattr(tokens, "extract_from_sglang_meta", extract)
    monkeypatch.setattr(tokens, "extract_prompt_logprobs_from_sglang_meta", calls.append)
    for wants, uploads, expected in ((False, False, 0), (True, True, 0), (True, False, 3)):
        calls.clear()
        responses = TokenResponses(wants_logprobs=wants, uploads=uploads)
        responses.convert(chunk([1]), shutting_down=False)
        responses.convert(chunk([2], finish=STOP), shutting_down=False)
        assert len(calls) == expected
