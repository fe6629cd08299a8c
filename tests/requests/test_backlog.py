# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.requests.backlog: nothing lost, nothing reordered, an end that stays apart."""

from __future__ import annotations

from typing import Any

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from trio_worker.requests.backlog import merge_by_stream, merge_native_by_stream
from trio_worker.responses import wrap_native

ERROR = {"type": "abort", "message": "no", "status_code": 500, "err_type": None}


def chunk(rid: str, *ids: int, finish: Any = None) -> dict[str, Any]:
    return {"output_ids": list(ids), "meta_info": {"id": rid, "finish_reason": finish}}


def test_streams_are_merged_apart() -> None:
    merged = merge_by_stream([chunk("a", 1), chunk("b", 10), chunk("a", 2, 3), chunk("b", 11)])
    assert [(one["meta_info"]["id"], one["output_ids"]) for one in merged] == [
        ("a", [1, 2, 3]),
        ("b", [10, 11]),
    ]


def test_rule_121_an_error_is_not_merged_with_the_tokens_before_it() -> None:
    merged = merge_by_stream([chunk("a", 1), chunk("a", 2), chunk("a", 3, finish=ERROR)])
    assert [(one["output_ids"], one["meta_info"]["finish_reason"]) for one in merged] == [
        ([1, 2], None),
        ([3], ERROR),
    ]


def test_native_answers_are_merged_in_their_wrapping() -> None:
    merged = merge_native_by_stream([wrap_native(chunk("a", 1)), wrap_native(chunk("a", 2))])
    assert [one["engine_data"]["sglang_response"]["output_ids"] for one in merged] == [[1, 2]]


def test_customized_metadata_is_joined_in_both_forms() -> None:
    """SGLang's own merge would do so too: it is per token, though the engine named it."""
    chunks = [chunk("a", 1), chunk("a", 2)]
    for number, one in enumerate(chunks):
        one["meta_info"]["entropy"] = [number]
    [merged] = merge_by_stream(chunks, {"entropy"})
    assert merged["meta_info"]["entropy"] == [0, 1]
    [native] = merge_native_by_stream([wrap_native(one) for one in chunks], {"entropy"})
    assert native["engine_data"]["sglang_response"]["meta_info"]["entropy"] == [0, 1]
