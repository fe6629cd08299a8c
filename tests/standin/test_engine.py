# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The real TokenizerManager and DetokenizerManager on the stand-in: one engine for all cases.

The engine lives in a child process (engine_child.py), which runs every case and reports.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.standin.child import run_engine_child
from trio_worker.standin.tokens import text_at

# Starting takes 25 to 40 s on two free cores, and minutes when they are shared.
START_S = 540

pytestmark = [pytest.mark.engine, pytest.mark.timeout(START_S + 60)]

HELLO = [74, 71, 78, 78, 81]  # "hello" in the tiny tokenizer


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the child saw, by case."""
    return run_engine_child(
        "tests.standin.engine_child", tmp_path_factory.mktemp("engine"), START_S
    )


def assert_whole(case: dict[str, Any], length: int, start: int = 0) -> None:
    """The case got exactly its tokens, once, in order, and one end."""
    assert case["text"] == text_at(HELLO, len(HELLO) + start, length)
    assert len(case["ids"]) == case["completion_tokens"] == length
    assert case["early_ends"] == 0


def test_streams_are_exact_and_continuations_go_on(seen: dict[str, Any]) -> None:
    case = seen["streaming"]
    assert_whole(case["whole"], 40)
    assert_whole(case["resumed"], 27, start=13)
    assert case["whole"]["finish"] == {"type": "length", "length": 40}
    assert case["whole"]["prompt_tokens"] == len(HELLO)


def test_a_request_that_does_not_stream_gets_it_all_at_once(seen: dict[str, Any]) -> None:
    assert_whole(seen["not_streaming"], 120)
    assert seen["not_streaming"]["chunks"] == 1


def test_stop_strings_are_trimmed_and_stop_tokens_end(seen: dict[str, Any]) -> None:
    string, token = seen["stops"]["string"], seen["stops"]["token"]
    assert string["finish"] == {"type": "stop", "matched": "klm"}
    # Unlike SGLang's scheduler the stand-in does not hold back what may become a stop string.
    assert string["text"] == "bcdefghijkl"
    assert string["completion_tokens"] == 12
    assert token["finish"] == {"type": "stop", "matched": 67}
    assert token["text"] == "bcdefghijklmnopqrstuvwxyz"


def test_an_abort_ends_the_stream_after_one_more_step(seen: dict[str, Any]) -> None:
    case = seen["abort"]
    assert case["finish"] == {
        "type": "abort",
        "message": "Aborted",
        "status_code": None,
        "err_type": None,
    }
    assert 5 < case["completion_tokens"] < 1000
    assert_whole(case, case["completion_tokens"])
    [abort] = [e for e in seen["events"] if e["event"] == "abort" and e["rid"] == "abort-me"]
    assert abort["hit"] == ["abort-me"]


def test_a_full_queue_refuses_and_waiting_requests_are_echoed(seen: dict[str, Any]) -> None:
    case = seen["abort_queued"]
    assert (case["gauges"]["running"], case["gauges"]["waiting"]) == (8, 2)
    assert case["refused"]["finish"] == {
        "type": "abort",
        "status_code": 503,
        "message": "The request queue is full.",
    }
    assert case["echoed"]["finish"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert case["ends"] == ["abort"] * 9


def test_parallel_samples_all_come(seen: dict[str, Any]) -> None:
    assert sorted(seen["parallel"]) == ["0", "1", "2"]
    for sample in seen["parallel"].values():
        assert_whole(sample, 9)
    warm_ups = [
        e
        for e in seen["events"]
        if e["event"] == "finish" and e["type"] == "length" and e["tokens"] == 0
    ]
    assert len(warm_ups) == 1


def test_a_batch_gets_every_answer(seen: dict[str, Any]) -> None:
    texts = {index: answer["text"] for index, answer in seen["batch"].items()}
    assert texts == {"0": text_at([67], 1, 6), "1": text_at([68, 69, 70], 3, 6)}


def test_logprobs_match_the_tokens(seen: dict[str, Any]) -> None:
    case = seen["logprobs"]
    ids = case["all"]["ids"]
    assert [meta["output_token_logprobs"][0][1] for meta in case["metas"]] == ids
    first = case["metas"][0]
    assert [entry[1] for entry in first["input_token_logprobs"]] == HELLO
    assert first["input_token_logprobs"][0][0] is None
    assert [len(top) for top in first["output_top_logprobs"]] == [2]
    assert first["output_token_ids_logprobs"][0][0][1] == 70


def test_errors_come_with_their_status(seen: dict[str, Any]) -> None:
    case = seen["errors"]
    got = {
        name: (answer["finish"]["status_code"], answer["finish"]["err_type"], answer["ids"])
        for name, answer in case.items()
    }
    assert got == {
        "400": (400, "BadRequestError", [68, 69]),
        "500": (500, None, [68, 69]),
        "503": (503, None, []),
        "none": (None, None, [68, 69]),
        "arrival": (400, None, []),
        "nonsense": (400, "BadRequestError", [68]),
    }
    assert "unknown kind 'bang'" in case["nonsense"]["finish"]["message"]


def test_a_burst_loses_nothing(seen: dict[str, Any]) -> None:
    assert_whole(seen["burst"], 80)
    assert Counter(e["kind"] for e in seen["events"] if e["event"] == "fault")["burst"] == 1


def test_a_hang_that_ends_loses_nothing(seen: dict[str, Any]) -> None:
    assert_whole(seen["hang"], 8)
    assert Counter(e["kind"] for e in seen["events"] if e["event"] == "fault")["hang"] == 1


def test_a_retraction_is_empty_chunks_and_a_count(seen: dict[str, Any]) -> None:
    case = seen["retraction"]
    assert_whole(case["all"], 8)
    assert case["empty"] == [None, None]
    assert case["retractions"] == [0, 0, 0, 1, 2, 2, 2, 2, 2, 2]


def test_an_ignored_abort_changes_nothing(seen: dict[str, Any]) -> None:
    assert_whole(seen["ignored_abort"], 30)
    [abort] = [e for e in seen["events"] if e["event"] == "abort" and e["rid"] == "deaf"]
    assert (abort["hit"], abort["ignored"]) == ([], ["deaf"])


def test_dispatch_can_be_delayed_in_the_worker(seen: dict[str, Any]) -> None:
    assert seen["slow_dispatch"]["dispatched_at_once"] is False
    assert_whole(seen["slow_dispatch"]["all"], 3)


def test_control_messages_are_answered(seen: dict[str, Any]) -> None:
    case = seen["control"]
    assert (case["busy_flush"], case["flush"]) == (False, True)
    assert (case["paused"]["running"], case["paused"]["waiting"]) == (0, 1)
    assert_whole(case["resumed"], 60)
    assert (case["disk"], case["outside"], case["inside"]) == (True, False, True)
    assert case["session"] == "s1"
    assert case["no_session"]["finish"]["status_code"] == 400
    assert_whole(case["session_request"], 2)
    assert case["version"] == "v7"
    unknown = [e["name"] for e in seen["events"] if e["event"] == "unknown"]
    assert unknown == ["SeparateReasoningReqInput"]


def test_health_checks_are_answered_idle_and_busy(seen: dict[str, Any]) -> None:
    case = seen["health_checks"]
    assert case["idle"]["finish"] == {"type": "length", "length": 1}
    assert case["arrived"] == 1
    assert case["busy"]["type"] == "abort"


def test_every_case_leaves_the_scheduler_empty(seen: dict[str, Any]) -> None:
    after = {name: state for name, state in seen.items() if name.endswith("/after")}
    assert len(after) == 16
    assert {(state["running"], state["waiting"]) for state in after.values()} == {(0, 0)}


def test_a_shutdown_request_ends_the_process_cleanly(seen: dict[str, Any]) -> None:
    assert seen["exit_status"] == 0
    last = seen["events"][-1]
    assert (last["event"], last["reason"]) == ("exit", "shutdown")
    assert last["skipped"] >= 0
