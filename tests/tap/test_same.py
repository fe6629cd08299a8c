# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's own path and the tap: the same requests, the same answers, the same traces.

A child process (engine_child.py) asks a real engine on the stand-in scheduler for everything once,
each request in several ways at the same time (`tests.tap.runs.Way`), and reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.standin.child import run_engine_child
from trio_worker.standin.tokens import text_at

# Starting takes 15 s on two free cores, and minutes when they are shared.
START_S = 540

pytestmark = [pytest.mark.engine, pytest.mark.timeout(START_S + 60)]

HELLO = [74, 71, 78, 78, 81]  # "hello" in the tiny tokenizer
TAPPED = ("parked", "slow")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the child saw, by case."""
    return run_engine_child("tests.tap.engine_child", tmp_path_factory.mktemp("tap"), START_S)


def groups(found: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every request that was run in several ways, with its name."""
    if isinstance(found, dict):
        if isinstance(found.get("plain"), dict) and "got" in found["plain"]:
            yield path, found
        else:
            for name, inner in found.items():
                yield from groups(inner, f"{path}/{name}")


def assert_same(found: Any, *, count: int) -> None:
    """All of `count` requests got the same in every way that it was run."""
    checked = 0
    for name, ways in groups(found):
        plain = ways["plain"]
        for way in ways:
            for what in ("got", "error", "cancelled"):
                assert ways[way][what] == plain[what], (name, way, what)
        checked += 1
    assert checked == count


def assert_tapped(found: Any) -> None:
    """Outputs did leave through the tap, by way of what each reader is there to show."""
    for name, ways in groups(found):
        assert not ways["plain"]["how"]["tapped"], name
        for way in TAPPED:
            assert ways[way]["how"]["tapped"], (name, way)
        parked, slow = ways["parked"]["how"], ways["slow"]["how"]
        assert parked["in_place"] == parked["chunks"], name
        assert slow["chunks"] < parked["chunks"], name


def test_no_case_failed(seen: dict[str, Any]) -> None:
    failed = {n: c["failed"] for n, c in seen.items() if isinstance(c, dict) and "failed" in c}
    assert not failed, "\n".join(failed.values())
    assert seen["unhandled"] == 0
    assert seen["died"] == ""


def test_whole_streams(seen: dict[str, Any]) -> None:
    case = seen["whole_streams"]
    assert_same(case, count=9)
    assert_tapped({"plain": case["plain"]["plain"], **case["plain"]})
    got = case["plain"]["parked"]["got"]
    assert got["text"] == text_at(HELLO, len(HELLO), 40)
    assert got["meta"]["finish_reason"] == {"type": "length", "length": 40}
    assert got["per_token"]["seen_by_the_test"] == [f"<{i}>" for i in got["ids"]]
    ends = {name: len(ways["slow"]["got"].get("ids", ())) for name, ways in case.items()}
    assert ends == {
        "plain": 40,
        "one token": 1,
        "two tokens": 2,
        "no token": 0,
        "stop string": 12,
        "stop id": 26,
        "least": 38,
        "ids in": 9,
        "too long": 0,
    }
    assert case["too long"]["slow"]["error"][0] == "ValueError"
    assert case["ids in"]["slow"]["got"]["prompt_ids"] == [74, 71, 78]


def test_metadata_of_each_token_is_cut_right(seen: dict[str, Any]) -> None:
    case = seen["per_token_metadata"]
    assert_same(case, count=4)
    assert_tapped(case)
    got = case["all logprobs"]["slow"]["got"]
    per_token = got["per_token"]
    assert [entry[1] for entry in per_token["output_token_logprobs"]] == got["ids"]
    assert [len(top) for top in per_token["output_top_logprobs"]] == [2] * 20
    assert [ids[1][1] for ids in per_token["output_token_ids_logprobs"]] == [80] * 20
    assert [entry[1] for entry in got["meta"]["input_token_logprobs"]] == HELLO
    masks = case["masks"]["slow"]["got"]
    assert masks["per_token"]["output_token_sampling_mask"] == [[i, i + 1] for i in masks["ids"]]


def test_streams_without_text(seen: dict[str, Any]) -> None:
    case = seen["without_tokenizer"]
    assert_same(case, count=4)
    assert case["plain"]["slow"]["got"]["fields"] == ["meta_info", "output_ids"]
    # An abort in the queue is the one chunk that has a text even there.
    assert case["echo"]["slow"]["got"]["fields"] == ["meta_info", "output_ids", "text"]


def test_irregular_steps(seen: dict[str, Any]) -> None:
    case = seen["irregular_steps"]
    assert_same(case, count=3)
    assert case["burst"]["slow"]["got"]["text"] == text_at(HELLO, len(HELLO), 80)
    assert case["retraction"]["slow"]["got"]["meta"]["num_retractions"] == 2


def test_errors_of_the_scheduler(seen: dict[str, Any]) -> None:
    case = seen["scheduler_errors"]
    assert_same(case, count=9)
    finish = {name: ways["slow"]["got"]["meta"]["finish_reason"] for name, ways in case.items()}
    assert {reason["type"] for reason in finish.values()} == {"abort"}
    assert [finish[name]["status_code"] for name in ("400", "500", "503", "none")] == [
        400,
        500,
        503,
        None,
    ]
    # What came before the error is not lost in it.
    assert len(case["500"]["slow"]["got"]["ids"]) == 4
    assert case["500"]["slow"]["how"]["last"]["output_ids"] == []


def test_errors_without_stream_are_raised_alike(seen: dict[str, Any]) -> None:
    case = seen["errors_without_stream"]
    assert_same(case, count=9)
    raised = {name: (ways["parked"]["error"] or [None])[0] for name, ways in case.items()}
    assert raised == {
        "400": "ValueError",
        "500": "HTTPException",
        "503": "HTTPException",
        "none": None,
        "first 500": "HTTPException",
        "arrival": None,
        "arrival 400": "ValueError",
        "arrival 503": "HTTPException",
        "nonsense": "ValueError",
    }


def test_aborts_in_each_phase(seen: dict[str, Any]) -> None:
    case = seen["aborts_by_phase"]
    assert_same(case, count=9)
    ends = {
        name: (
            ways["slow"]["got"]["meta"]["finish_reason"]["type"],
            len(ways["slow"]["got"]["ids"]),
        )
        for name, ways in case.items()
    }
    assert ends == {
        "before dispatch": ("length", 9),
        "in prefill": ("abort", 0),
        "late echo": ("abort", 0),
        "streaming": ("abort", 6),
        "late": ("abort", 6),
        "ignored": ("length", 30),
        # SGLang's echo says the last token once more.
        "echo after outputs": ("abort", 6),
        "in queue": ("abort", 0),
        "all": ("abort", 6),
    }


def test_an_abort_in_full_flight_loses_and_doubles_nothing(seen: dict[str, Any]) -> None:
    case = seen["running_aborts"]
    assert_cut(case, least=4)
    for way in TAPPED:
        got = case[way]["got"]
        assert len(got["per_token"]["output_token_logprobs"]) == len(got["ids"])
        assert got["keys"] == case["plain"]["got"]["keys"]


def assert_cut(ways: dict[str, Any], *, least: int) -> None:
    """Each got the beginning of its stream, whole and once, and an abort as its end."""
    for record in ways.values():
        got = record["got"]
        assert got["meta"]["finish_reason"]["type"] == "abort"
        assert least <= len(got["ids"]) == got["meta"]["completion_tokens"] < 1500
        assert got["text"] == text_at(HELLO, len(HELLO), len(got["ids"]))
        assert got["early_ends"] == 0


def test_who_leaves_aborts_once_and_has_what_came_before(seen: dict[str, Any]) -> None:
    case = seen["leaving"]
    assert_same(case, count=1)
    assert case["aborts"] == {"plain": 1, "parked": 1, "slow": 1}
    assert case["got"]["slow"]["cancelled"]
    assert len(case["got"]["slow"]["got"]["ids"]) == 5


def test_what_is_outside_of_the_scope_takes_sglangs_path(seen: dict[str, Any]) -> None:
    case = seen["outside"]
    for name, ways in case.items():
        for way in TAPPED:
            assert ways[way] == ways["plain"], (name, way)
        assert not ways["parked"]["tapped"], name
    assert sorted(case["samples"]["slow"]["streams"]) == ["0", "1", "2"]
    assert {stream["text"] for stream in case["samples"]["slow"]["streams"].values()} == {
        text_at(HELLO, len(HELLO), 9)
    }
    batch = {index: stream["text"] for index, stream in case["batch"]["slow"]["streams"].items()}
    assert batch == {"0": text_at([67], 1, 9), "1": text_at([68, 69, 70], 3, 9)}
    for name in ("at once", "cumulative"):
        [stream] = case[name]["slow"]["streams"].values()
        assert stream["text"] == text_at(HELLO, len(HELLO), 40)


def test_every_adapter_is_released_as_often_as_sglang_does_it(seen: dict[str, Any]) -> None:
    case = seen["adapters"]
    released: dict[str, dict[str, int]] = {}
    for name, times in case["released"].items():
        request, _, way = name.rpartition(".")
        released.setdefault(request, {})[way] = times
    for request, ways in released.items():
        assert len(set(ways.values())) == 1, (request, ways)
        assert len(ways) == 3, request
    assert set(case["acquired"].values()) == {1}
    assert len(case["acquired"]) == 18
    once = {request for request, ways in released.items() if ways["slow"] == 1}
    assert {"finished", "aborted", "error 400", "refused"} <= once


def test_every_request_is_logged_alike(seen: dict[str, Any]) -> None:
    """--log-requests: one line at arrival, one at the end, with the same in them."""
    lines = traces(seen["logged"], lambda line: line["rid"], "obj", "out")
    assert_same_traces(lines, least=60)
    finished = [line for line in seen["logged"] if line["event"] == "request.finished"]
    assert len({line["rid"] for line in finished}) == len(finished)


def test_every_request_is_exported_alike(seen: dict[str, Any]) -> None:
    """--export-metrics-to-file: one record at the end, with the same in it."""
    for record in seen["exported"]:
        record["request_parameters"] = json.loads(record["request_parameters"])
    records = traces(seen["exported"], lambda record: record["id"], "request_parameters")
    assert_same_traces(records, least=60)


def traces(lines: list[Any], rid_of: Any, *parts: str) -> dict[str, dict[str, list[Any]]]:
    """What was written of each request, by request and way, less what depends on the moment."""
    found: dict[str, dict[str, list[Any]]] = {}
    for line in lines:
        rid = rid_of(line)
        request, _, way = rid.rpartition(".") if isinstance(rid, str) else ("", "", "")
        if way in ("plain", *TAPPED) and request.split(".")[0] in ("r", "ids"):
            found.setdefault(request, {}).setdefault(way, []).append(comparable(line))
    return found


CUT = ("text", "output_ids", "id", "rid", "lora_path", "lora_id", "timestamp")


def comparable(value: Any, depth: int = 0) -> Any:
    """Without rids and times. The last chunk's own text and ids depend on how outputs were cut."""
    if isinstance(value, dict):
        return {
            key: comparable(inner, depth + 1)
            for key, inner in value.items()
            if key not in CUT and not key.startswith("output_token") and key != "seen_by_the_test"
        }
    return "a time" if isinstance(value, float) and value > 1e6 else _kind(value)


def _kind(value: Any) -> Any:
    return "a float" if isinstance(value, float) else value


def assert_same_traces(found: dict[str, dict[str, list[Any]]], *, least: int) -> None:
    for request, ways in found.items():
        assert len(ways) == 3, (request, sorted(ways))
        for way in TAPPED:
            assert ways[way] == ways["plain"], (request, way)
    assert len(found) >= least


def test_dumps_hold_the_same(seen: dict[str, Any]) -> None:
    case = seen["dumps"]
    expected = [
        [way, "hello", 9, {"type": "length", "length": 9}, 9] for way in ("parked", "plain", "slow")
    ]
    assert case["dumped"] == expected
    assert case["crash"] == expected


def test_a_pause_in_each_mode(seen: dict[str, Any]) -> None:
    case = seen["pauses"]
    assert_same(case, count=6)
    whole = [60, 60, 30]
    for mode, length in zip(("in_place", "retract", "abort"), whole, strict=True):
        got = case[mode]["paused"]["slow"]["got"]
        assert got["text"] == text_at(HELLO, len(HELLO), length)
        assert got["meta"]["finish_reason"]["type"] == ("abort" if mode == "abort" else "length")
        assert case[mode]["late waits"] == [True] * 3
        assert len(case[mode]["late"]["slow"]["got"]["ids"]) == 5


def test_a_weight_update_waits_for_the_engine_and_for_no_reader(seen: dict[str, Any]) -> None:
    case = seen["weight_update"]
    everybody = dict.fromkeys(("plain", "parked", "slow", "away"), 2)
    assert case["updated"] is True
    assert case["before"] == everybody
    assert case["after"] == everybody
    assert case["waits for"] == 4
    assert case["late waits"] == [True] * 4
    assert case["unread"] == ["away"]
    assert_same(case, count=2)
    assert case["early"]["away"]["got"]["text"] == text_at(HELLO, len(HELLO), 60)
    assert case["early"]["slow"]["got"]["meta"]["weight_version"] == "default"
    assert case["late"]["slow"]["got"]["meta"]["weight_version"] == "v2"


def test_health_checks(seen: dict[str, Any]) -> None:
    case = seen["health_checks"]
    assert case["idle"] == [{"type": "length", "length": 1}]
    # The next output of anybody is proof enough.
    assert case["busy"] == []
    assert_cut(case["got"], least=1)


def test_a_gateways_worker_is_the_same_to_the_tap(seen: dict[str, Any]) -> None:
    """What was seen of the manager holds for it: it overrides nothing that the tap touches."""
    assert seen["gateway worker"] == {
        "is SGLang's": True,
        "is tapped": True,
        "differs where the tap sits": [],
    }


def test_the_first_chunk_says_when_it_was_sent(seen: dict[str, Any]) -> None:
    for name, ways in groups({n: seen[n] for n in seen if not n.startswith("err")}):
        for way, record in ways.items():
            stamped = record["how"]["stamped"]
            assert stamped[:1] in ([], [True]), (name, way)
            # With metrics on, SGLang says it in the last one as well.
            assert not any(stamped[1:-1]), (name, way)


def test_nothing_is_left(seen: dict[str, Any]) -> None:
    """No state, no task, no reader; and, the collector off, no object of any request."""
    after = {name: case for name, case in seen.items() if name.endswith("/after")}
    assert len(after) >= 14
    nothing = {
        "registered": 0,
        "flights": 0,
        "feeders": 0,
        "tasks": 0,
        "readers": 0,
        "alive": {},
    }
    assert after == dict.fromkeys(after, nothing)
