# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Text mode against the incumbent, case by case."""

import pytest
from dynamo.llm import HttpError
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument

from tests.responses.chunks import ERROR_ABORTS, PLAIN_ABORTS, RID, STOPS, chunk
from tests.responses.oracle import CONTEXT_ID, MODEL, Scenario, incumbent, ours

STOP = {"type": "stop", "matched": "###"}
ASKS_STOP_REASON = {"nvext": {"extra_fields": ["stop_reason"]}}

CASES: dict[str, Scenario] = {
    "plain": Scenario([chunk([1], "a"), chunk([2], "b"), chunk([3], "c", finish=STOP)]),
    "no whole character yet": Scenario(
        [chunk([1], ""), chunk([2], "é"), chunk([3], "", finish=STOP)]
    ),
    "empty chunks": Scenario([chunk([], ""), chunk([], ""), chunk([1], "a"), chunk([], "")]),
    "nothing": Scenario([]),
    "no text": Scenario([chunk([1]), chunk([2], finish=STOP)]),
    "null text": Scenario([{**chunk([1]), "text": None}]),
    "text without ids": Scenario([{"text": "a", "meta_info": {"finish_reason": None}}]),
    "parallel samples": Scenario(
        [
            chunk([1], "a", index=1, rid="b"),
            chunk([2], "b", index=0, rid="a"),
            chunk([3], "c", index=1, rid="b", finish=STOP),
            chunk([4], "d", index=0, rid="a", finish={"type": "length"}),
        ],
        choices=2,
    ),
    "logprobs are ignored": Scenario(
        [chunk([1], "a", meta={"output_token_logprobs": ["broken"]})], wants_logprobs=True
    ),
    "engine data is ignored": Scenario([chunk([1], "a", engine_data={"k": 1}, finish=STOP)]),
    "routed experts": Scenario(
        [
            chunk([1], "a", meta={"routed_experts": None}),
            chunk([1], "a", meta={"routed_experts": ""}),
            chunk([2], "b", meta={"routed_experts": "AAEC"}, finish=STOP),
        ],
        request=ASKS_STOP_REASON,
    ),
    "guided decoding and thinking budget": Scenario(
        [chunk([1], "{", finish=STOP)],
        request={
            "guided_decoding": {"json": {"type": "object"}},
            "thinking_token_budget": 64,
            **ASKS_STOP_REASON,
        },
    ),
    "client leaves": Scenario([chunk([1], "a"), chunk([2], "b", finish=STOP)], stop_at=1),
    "client leaves, choices speak late": Scenario(
        [chunk([1], "a", index=i, rid=rid) for i, rid in enumerate("aba")],
        stop_at=1,
        ordered=False,
        choices=3,
    ),
    "abort in a shutdown": Scenario(
        [chunk([1], "a"), chunk([], "", finish={"type": "abort"})], shutdown_at=1
    ),
    "error abort in a shutdown": Scenario(
        [chunk([1], "a", finish={"type": "abort", "status_code": 400})], shutdown_at=0
    ),
    "normal end in a shutdown": Scenario([chunk([1], "a", finish=STOP)], shutdown_at=0),
    "error after text": Scenario(
        [chunk([1], "a"), chunk([2], "b", finish={"type": "abort", "status_code": 503})]
    ),
    "upload": Scenario(
        [
            chunk([1], "a", meta={"routed_experts": "AAEC"}),
            chunk([2], "b", meta={"routed_experts": "AAEC"}, finish=STOP),
        ],
        uploads=True,
        request=ASKS_STOP_REASON,
    ),
    "upload fails": Scenario(
        [chunk([1], "a", finish=STOP)], uploads=True, upload_error=OSError("bucket gone")
    ),
    "upload, shutdown meanwhile": Scenario(
        [chunk([1], "a", finish={"type": "abort"})], uploads=True, shutdown_in_upload=True
    ),
    "upload, client left": Scenario([chunk([1], "a", finish=STOP)], uploads=True, stop_at=0),
    "no metadata": Scenario([{"text": "a"}]),
    "no finish reason": Scenario([{"text": "a", "meta_info": {"id": RID}}]),
    "finish reason as string": Scenario([chunk([1], "a", finish="stop")]),  # type: ignore[arg-type]
    "finish reason without type": Scenario([chunk([1], "a", finish={"matched": 1})]),
    **{
        f"stop reason: {name}": Scenario(
            [chunk([1], "a", finish={"type": "stop", "matched": matched})],
            user_stop_token_ids=asked,
            request=ASKS_STOP_REASON,
        )
        for name, (matched, asked) in STOPS.items()
    },
    **{
        f"stop reason asked by {name}": Scenario([chunk([1], "a", finish=STOP)], request=request)
        for name, request in {
            "nobody": None,
            "empty request": {},
            "extra args": {"extra_args": ASKS_STOP_REASON},
            "other field": {"nvext": {"extra_fields": ["worker_id"]}},
            "odd fields": {"nvext": {"extra_fields": "stop_reason"}, "extra_args": "odd"},
        }.items()
    },
    **{
        f"error abort: {name}": Scenario([chunk([1], "x", finish={"type": "abort", **details})])
        for name, details in ERROR_ABORTS.items()
    },
    **{
        f"plain abort: {name}": Scenario([chunk([], "", finish={"type": "abort", **details})])
        for name, details in PLAIN_ABORTS.items()
    },
}
for _scenario in CASES.values():
    _scenario.mode = "text"


@pytest.mark.parametrize("name", CASES)
def test_equals_the_incumbent(name: str) -> None:
    mine, theirs = ours(CASES[name]), incumbent(CASES[name])
    assert mine == theirs
    assert mine.exact() == theirs.exact()


def test_the_cases_end_as_their_names_say() -> None:
    """The oracle compares; this holds both of them to something outside."""
    plain = ours(CASES["plain"])
    assert plain.events[0] == ("notify",)
    assert plain.sent[0] == {
        "id": CONTEXT_ID,
        "created": 1_700_000_000,
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}
        ],
        "model": MODEL,
        "object": "chat.completion.chunk",
    }
    assert [out["choices"][0]["finish_reason"] for out in plain.sent] == [None, None, "stop"]
    assert ours(CASES["stop reason: string"]).sent[0]["nvext"] == {"stop_reason": "###"}
    assert "nvext" not in ours(CASES["stop reason asked by nobody"]).sent[0]
    errors: dict[str, type[Exception]] = {
        "abort in a shutdown": EngineShutdown,
        "error abort: bad request": InvalidArgument,
        "error abort: internal": HttpError,
    }
    for name, expected in errors.items():
        error = ours(CASES[name]).error
        assert error is not None
        assert error[0] is expected
