# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Native mode against the incumbent, case by case."""

import copy

import pytest
from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.engine_generate import native_generate_stream

from tests.responses.chunks import ERROR_ABORTS, RID, chunk
from tests.responses.oracle import Scenario, incumbent, ours
from trio_worker.responses import NativeResponses, wrap_native

STOP = {"type": "stop", "matched": 2}


def mapped(public: str | list[str] | None, *rids_and_indices: tuple[str, int | None]) -> Scenario:
    return Scenario(
        [chunk([1], "a", rid=rid, index=index) for rid, index in rids_and_indices],
        internal_request_id=RID,
        response_request_id=public,
    )


CASES: dict[str, Scenario] = {
    "plain": Scenario([chunk([1], "a"), chunk([2], "b", finish=STOP)]),
    "nothing": Scenario([]),
    "empty chunks are passed on": Scenario([chunk([], ""), chunk([], "", finish=STOP)]),
    "first output is text": Scenario([chunk([], "a"), chunk([1], "b")]),
    "first output is ids": Scenario([chunk([1], ""), chunk([1], "b")]),
    "unknown fields": Scenario([{**chunk([1], finish=STOP), "prompt_token_ids": [1, 2]}]),
    "no metadata": Scenario([{"text": "a", "output_ids": [1]}]),
    "no id": Scenario([{"text": "a", "meta_info": {}}], response_request_id="public"),
    "no prompt count": Scenario([chunk([1], prompt=None, finish=STOP)]),
    "no cache-hit report asked": Scenario([chunk([1], finish=STOP)], report_kv_cache_hit=False),
    "disaggregated decode": Scenario([chunk([1], finish=STOP)], disaggregated_decode=True),
    "cache hit under a public id": Scenario(
        [chunk([1], finish=STOP)], internal_request_id=RID, response_request_id="public"
    ),
    "public id": mapped("public", (RID, None), (RID, None)),
    "public ids of samples": mapped("public", (f"{RID}_0", 0), (f"{RID}_1", 1)),
    "public ids of a batch": mapped(
        ["pa", "pb"], (f"{RID}_0", 0), (f"{RID}_1", 1), (f"{RID}_2", 2)
    ),
    "list for a single one": mapped(["pa"], (RID, None)),
    "children with ids of their own": mapped("public", ("child", 0), (f"{RID}_1", 0)),
    "unmapped": mapped(None, (RID, None)),
    "same id inside and out": mapped(RID, (RID, None)),
    "client leaves": Scenario([chunk([1]), chunk([2]), chunk([3], finish=STOP)], stop_at=1),
    "client leaves, choices speak late": Scenario(
        [chunk([1], index=i, rid=rid) for i, rid in enumerate("aba")],
        stop_at=1,
        ordered=False,
        choices=3,
    ),
    "normal end in a shutdown": Scenario([chunk([1]), chunk([1], finish=STOP)], shutdown_at=0),
    **{
        f"error abort: {name}": Scenario([chunk([1], finish={"type": "abort", **details})])
        for name, details in ERROR_ABORTS.items()
    },
}
for _scenario in CASES.values():
    _scenario.mode = "native"


@pytest.mark.parametrize("name", CASES)
def test_equals_the_incumbent(name: str) -> None:
    mine, theirs = ours(CASES[name]), incumbent(CASES[name])
    assert mine == theirs
    assert mine.exact() == theirs.exact()


def test_ids_become_public() -> None:
    sent = ours(CASES["public ids of a batch"]).sent
    ids = [out["engine_data"]["sglang_response"]["meta_info"]["id"] for out in sent]
    assert ids == ["pa", "pb", f"{RID}_2"]


def test_a_chunk_that_is_not_wrapped_is_refused_by_both() -> None:
    with pytest.raises(KeyError, match="engine_data"):
        NativeResponses().convert(chunk([1]), shutting_down=False)


def test_an_abort_in_a_shutdown_migrates_instead_of_being_sent() -> None:
    """Rules 39 and 113; the incumbent sends it, and its monitor raises afterwards."""
    scenario = Scenario(
        [chunk([1]), chunk([], finish={"type": "abort"})], mode="native", shutdown_at=1
    )
    mine, theirs = ours(scenario), incumbent(scenario)
    assert len(theirs.sent) == 2
    assert mine.sent == theirs.sent[:1]
    assert mine.error is not None
    assert mine.error[0] is EngineShutdown
    assert mine.unfinished_ids == theirs.unfinished_ids == set()


async def test_wrapping_is_the_incumbents() -> None:
    class Manager:
        async def generate_request(self, request: object, http_request: None):  # type: ignore[no-untyped-def]
            yield chunk([1])

    class Engine:
        tokenizer_manager = Manager()

    # No asyncio in it: the generator awaits nothing but the one above.
    assert [c async for c in native_generate_stream(Engine(), None)] == [wrap_native(chunk([1]))]


def test_what_sglang_gave_is_not_changed() -> None:
    """SGLang may hold the answer for its logs and dumps."""
    responses = NativeResponses(internal_request_id=RID, response_request_id="public")
    given = wrap_native(chunk([1], "a", finish=STOP))
    before = copy.deepcopy(given)
    out = responses.convert(given, shutting_down=False)
    assert given == before
    assert out != before
