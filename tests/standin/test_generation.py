# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import weakref

import pytest

from tests.standin.harness import ALPHABET, Bench, embedding_request, request
from trio_worker.standin.request import Logprobs, Phase
from trio_worker.standin.script import FaultKind
from trio_worker.standin.tokens import token_at

PROMPT = [3, 1, 4, 1, 5, 9]


def expected(prompt: list[int], count: int) -> list[int]:
    return [token_at(prompt, len(prompt) + k, 1024) for k in range(count)]


# Steps


@pytest.mark.parametrize("per_step", [1, 3, 7, 40])
@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_a_request_gets_its_tokens_once_and_in_order(per_step: int, length: int) -> None:
    bench = Bench(tokens_per_step=per_step)
    bench.submit(request("a", PROMPT, length))
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, length)
    assert bench.finish("a") == {"type": "length", "length": length}
    rows = bench.rows("a")
    assert len(rows) == -(-length // per_step)
    assert [row["completion_tokens"] for row in rows][-1] == length


def test_completion_tokens_are_cumulative() -> None:
    bench = Bench(tokens_per_step=2)
    bench.submit(request("a", PROMPT, 7))
    bench.run()
    assert [row["completion_tokens"] for row in bench.rows("a")] == [2, 4, 6, 7]


def test_only_the_first_row_tells_the_end_of_the_prompt() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 3))
    bench.run()
    rows = bench.rows("a")
    assert list(rows[0]["decode_ids"]) == [*PROMPT[-5:], *expected(PROMPT, 1)]
    assert [list(row["decode_ids"]) for row in rows[1:]] == [[t] for t in expected(PROMPT, 3)[1:]]
    assert {row["read_offsets"] for row in rows} == {5}


def test_many_requests_share_a_message_and_keep_apart() -> None:
    bench = Bench()
    prompts = {f"r{i}": [i, *range(i)] for i in range(20)}
    for i, (rid, prompt) in enumerate(prompts.items()):
        bench.submit(request(rid, prompt, 5 + i))
        bench.steps(1)
    bench.run()
    for i, (rid, prompt) in enumerate(prompts.items()):
        assert bench.tokens(rid) == expected(prompt, 5 + i)
        assert bench.finish(rid) == {"type": "length", "length": 5 + i}
    assert bench.generation.idle


@pytest.mark.parametrize("cut", [1, 5, 26])
def test_a_continuation_goes_on_exactly(cut: int) -> None:
    bench = Bench(tokens_per_step=4)
    bench.submit(request("a", PROMPT, 50))
    longer = PROMPT + expected(PROMPT, cut)
    bench.submit(request("b", longer, 50 - cut))
    bench.run()
    assert bench.tokens("a")[cut:] == bench.tokens("b")


def test_nothing_is_sent_when_there_is_nothing() -> None:
    bench = Bench()
    bench.steps(3)
    assert bench.messages == []
    assert not bench.generation.steps_wanted


def test_a_warm_up_without_tokens_ends_at_its_first_step() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 0, faults="error:at=1"))
    bench.steps(1)
    assert bench.tokens("a") == []
    assert bench.finish("a") == {"type": "length", "length": 0}
    assert bench.generation.idle


@pytest.mark.parametrize(("interval", "counts"), [(4, [1, 5, 9, 10]), (50, [1, 10])])
def test_a_stream_interval_is_kept(interval: int, counts: list[int]) -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 10, stream_interval=interval))
    bench.run()
    assert [row["completion_tokens"] for row in bench.rows("a")] == counts
    assert bench.tokens("a") == expected(PROMPT, 10)
    assert bench.generation.step_number == 10


def test_embeddings_go_out_as_their_own_message() -> None:
    bench = Bench()
    bench.submit(embedding_request("e"), request("a", PROMPT, 2))
    bench.run()
    assert [m["rids"] for m in bench.embeddings] == [["e"]]
    assert bench.embeddings[0]["embeddings"] == [[1.0, 0.0]]
    assert bench.tokens("a") == expected(PROMPT, 2)


def test_logprobs_come_only_to_those_who_asked() -> None:
    bench = Bench()
    bench.submit(
        request("a", PROMPT, 3, logprobs=Logprobs(top=2, start=4)), request("b", PROMPT, 3)
    )
    bench.run()
    first, *others = bench.rows("a")
    assert first["input_token_logprobs_val"][0] is None
    assert first["input_token_logprobs_idx"] == PROMPT[4:]
    assert all(row["input_token_logprobs_idx"] == [] for row in others)
    for row, token in zip(bench.rows("a"), expected(PROMPT, 3), strict=True):
        assert row["output_token_logprobs_idx"] == [token]
        assert row["output_top_logprobs_idx"][0][0] == token
        assert len(row["output_top_logprobs_val"][0]) == 2
    assert all(row["output_token_logprobs_val"] == [] for row in bench.rows("b"))


# Queue and prefill


def test_more_than_may_run_wait_their_turn() -> None:
    bench = Bench(max_running=2)
    bench.submit(*(request(f"r{i}", PROMPT, 3) for i in range(5)))
    assert bench.generation.gauges()["running"] == 2
    assert bench.generation.gauges()["waiting"] == 3
    bench.run()
    assert [n["rid"] for event, n in bench.notes if event == "finish"] == [
        f"r{i}" for i in range(5)
    ]


def test_a_full_queue_refuses_as_sglang_does() -> None:
    bench = Bench(max_running=1, queue_limit=1)
    bench.submit(*(request(f"r{i}", PROMPT, 3) for i in range(3)))
    assert bench.echoes == [
        (
            "r2",
            {"type": "abort", "status_code": 503, "message": "The request queue is full."},
        )
    ]
    bench.run()
    assert bench.finish("r1") == {"type": "length", "length": 3}


def test_prefill_delays_the_first_token_only() -> None:
    bench = Bench(prefill_ms=20)
    bench.submit(request("a", PROMPT, 2))
    assert not bench.generation.steps_wanted
    bench.sleep(0.019)
    assert not bench.generation.steps_wanted
    bench.sleep(0.001)
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 2)


def test_one_request_may_have_a_slow_prefill() -> None:
    bench = Bench()
    bench.submit(request("slow", PROMPT, 2, faults="slow_prefill:ms=50"), request("b", PROMPT, 2))
    bench.run()
    assert bench.tokens("slow") == []
    assert bench.finish("b") is not None
    bench.sleep(0.05)
    bench.run()
    assert bench.tokens("slow") == expected(PROMPT, 2)


# Aborts


def test_an_abort_gives_one_more_row_that_says_so() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 50))
    bench.steps(3)
    outcome = bench.abort("a")
    assert outcome.hit == ["a"]
    bench.steps(1)
    assert bench.tokens("a") == expected(PROMPT, 4)
    assert bench.finish("a") == {
        "type": "abort",
        "message": "Aborted",
        "status_code": None,
        "err_type": None,
    }
    assert bench.generation.idle
    assert not bench.generation.steps_wanted


def test_an_abort_with_a_message_is_a_503() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 50))
    bench.steps(1)
    bench.abort("a", message="too slow")
    bench.run()
    reason = bench.finish("a")
    assert reason is not None
    assert (reason["message"], reason["status_code"]) == ("too slow", 503)


def test_an_abort_at_the_last_token_does_not_generate_more() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 3))
    bench.steps(2)
    bench.abort("a")
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 3)
    reason = bench.finish("a")
    assert reason is not None
    assert reason["type"] == "abort"


@pytest.mark.parametrize("where", ["queue", "prefill"])
def test_an_abort_before_any_output_is_echoed(where: str) -> None:
    bench = Bench(max_running=1 if where == "queue" else None, prefill_ms=10)
    bench.submit(request("first", PROMPT, 3), request("a", PROMPT, 3))
    bench.abort("a", reason={"type": "abort", "message": "m"})
    assert bench.echoes == [("a", {"type": "abort", "message": "m"})]
    bench.sleep(1)
    bench.run()
    assert bench.rows("a") == []
    assert bench.finish("first") is not None


def test_ids_match_by_prefix_and_all_means_all() -> None:
    bench = Bench()
    bench.submit(*(request(rid, PROMPT, 50) for rid in ("x_1", "x_2", "y_1")))
    bench.steps(1)
    assert sorted(bench.abort("x_").hit) == ["x_1", "x_2"]
    outcome = bench.abort("", abort_all=True)
    assert (outcome.hit, sorted(outcome.repeated)) == (["y_1"], ["x_1", "x_2"])
    bench.steps(1)
    assert bench.generation.idle


def test_an_abort_for_nobody_is_counted() -> None:
    bench = Bench()
    assert bench.abort("gone").hit == []
    assert bench.generation.gauges()["aborts_received"] == 1
    assert bench.notes[-1] == (
        "abort",
        {"rid": "gone", "abort_all": False, "hit": [], "repeated": [], "ignored": []},
    )


def test_an_aborted_request_makes_room() -> None:
    bench = Bench(max_running=1)
    bench.submit(request("a", PROMPT, 50), request("b", PROMPT, 2))
    bench.steps(2)
    bench.abort("a")
    bench.run()
    assert bench.tokens("b") == expected(PROMPT, 2)


def test_an_aborted_request_is_forgotten_at_once() -> None:
    bench = Bench()
    made = request("a", PROMPT, 9000)
    gone = weakref.ref(made)
    bench.submit(made)
    bench.steps(2)
    bench.abort("a")
    bench.run()
    del made
    bench.messages.clear()
    assert gone() is None


# Faults


def test_ignored_aborts_are_ignored_and_counted() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 4, faults="ignore_abort"))
    bench.steps(1)
    assert bench.abort("a").ignored == ["a"]
    bench.run()
    assert bench.finish("a") == {"type": "length", "length": 4}


def test_an_abort_may_be_ignored_a_few_times_only() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 40, faults="ignore_abort:times=2"))
    bench.steps(1)
    assert [bench.abort("a").ignored for _ in range(2)] == [["a"], ["a"]]
    assert bench.abort("a").hit == ["a"]


def test_a_delayed_echo_of_a_running_request() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 40, faults="delay_echo:ms=100"))
    bench.steps(2)
    bench.abort("a")
    bench.steps(3)
    assert len(bench.tokens("a")) == 2
    assert bench.finish("a") is None
    bench.sleep(0.1)
    bench.run()
    reason = bench.finish("a")
    assert reason is not None
    assert reason["type"] == "abort"


def test_a_delayed_echo_of_a_waiting_request() -> None:
    bench = Bench(max_running=1)
    bench.submit(request("b", PROMPT, 3), request("a", PROMPT, 3, faults="delay_echo:ms=100"))
    bench.abort("a")
    assert bench.echoes == []
    bench.sleep(0.1)
    assert bench.echoes == [("a", None)]


@pytest.mark.parametrize("per_step", [1, 3])
def test_a_retraction_is_an_empty_row_that_is_no_end(per_step: int) -> None:
    bench = Bench(tokens_per_step=per_step)
    bench.submit(request("a", PROMPT, 6, faults="retract:at=3:times=2"))
    bench.run()
    rows = bench.rows("a")
    assert [row["retraction_counts"] for row in rows if not row["output_ids"]] == [1, 2]
    assert rows[-1]["retraction_counts"] == 2
    assert bench.tokens("a") == expected(PROMPT, 6)
    assert bench.finish("a") == {"type": "length", "length": 6}


def test_a_retraction_may_take_a_while() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 4, faults="retract:at=2:ms=30"))
    bench.run()
    assert len(bench.tokens("a")) == 1
    assert bench.generation.gauges()["running"] == 1
    bench.sleep(0.03)
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 4)


@pytest.mark.parametrize("per_step", [1, 2, 5])
@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_an_error_strikes_in_the_place_of_the_kth_token(per_step: int, at: int) -> None:
    bench = Bench(tokens_per_step=per_step)
    bench.submit(request("a", PROMPT, 8, faults=f"error:at={at}:status=500:type=E:message=no"))
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, at - 1)
    assert bench.finish("a") == {
        "type": "abort",
        "message": "no",
        "status_code": 500,
        "err_type": "E",
    }
    assert bench.generation.idle


def test_an_error_at_the_arrival_is_echoed() -> None:
    bench = Bench()
    bench.submit(request("a", faults="error:at=0:status=400"))
    assert bench.generation.idle
    [(rid, reason)] = bench.echoes
    assert rid == "a"
    assert reason is not None
    assert reason["status_code"] == 400


@pytest.mark.parametrize("kind", ["die", "hang"])
def test_the_process_is_struck_before_the_kth_token_is_sent(kind: str) -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 8, faults=f"{kind}:at=4"))
    bench.steps(3)
    assert bench.strikes == []
    bench.steps(1)
    assert [fault.kind for fault in bench.strikes] == [FaultKind(kind)]


def test_the_process_may_be_struck_by_an_arrival() -> None:
    bench = Bench()
    bench.submit(request("a", faults="die:at=0"))
    assert [fault.kind for fault in bench.strikes] == [FaultKind.DIE]


def test_a_stall_stops_one_request_only() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 6, faults="stall:at=3:ms=40"), request("b", PROMPT, 6))
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 2)
    assert bench.tokens("b") == expected(PROMPT, 6)
    bench.sleep(0.04)
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 6)


def test_a_stall_without_end_can_be_aborted() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 6, faults="stall:at=3"))
    bench.run()
    assert bench.generation.next_timer() is None
    assert bench.abort("a").hit == ["a"]
    bench.run()
    reason = bench.finish("a")
    assert reason is not None
    assert reason["type"] == "abort"
    assert bench.generation.idle


def test_a_burst_asks_for_steps_in_one_tick_once() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 60, faults="burst:at=2:size=50"))
    bench.steps(1)
    assert bench.generation.take_burst() == 0
    bench.steps(1)
    assert len(bench.tokens("a")) == 2
    assert bench.generation.take_burst() == 50
    assert bench.generation.take_burst() == 0


def test_faults_in_the_same_place_strike_one_after_the_other() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 4, faults="burst:at=2:size=3,retract:at=2,error:at=2"))
    bench.run()
    assert [list(row["output_ids"]) for row in bench.rows("a")] == [expected(PROMPT, 1), [], []]
    assert bench.generation.take_burst() == 3
    assert [n["kind"] for event, n in bench.notes if event == "fault"] == [
        "burst",
        "retract",
        "error",
    ]


# Pause


def test_a_pause_in_place_stops_steps_and_keeps_everything() -> None:
    bench = Bench()
    bench.submit(request("a", PROMPT, 5))
    bench.steps(2)
    bench.generation.pause(retract=False)
    bench.submit(request("b", PROMPT, 2))
    assert not bench.generation.steps_wanted
    assert bench.generation.gauges()["waiting"] == 1
    bench.generation.resume(bench.now)
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 5)
    assert bench.tokens("b") == expected(PROMPT, 2)
    assert bench.rows("a")[-1]["retraction_counts"] == 0


def test_a_pause_with_retraction_sends_everybody_back_to_the_queue() -> None:
    bench = Bench(prefill_ms=10)
    running, prefilling = request("a", PROMPT, 5), request("b", PROMPT, 5)
    bench.submit(running)
    bench.sleep(0.01)
    bench.steps(2)
    bench.submit(prefilling)
    bench.generation.pause(retract=True)
    assert [running.phase, prefilling.phase] == [Phase.WAITING, Phase.WAITING]
    bench.sleep(1)
    assert not bench.generation.steps_wanted
    bench.generation.resume(bench.now)
    bench.sleep(0.01)
    bench.run()
    assert bench.tokens("a") == expected(PROMPT, 5)
    assert bench.rows("a")[-1]["retraction_counts"] == 1
    assert bench.tokens("b") == expected(PROMPT, 5)


def test_gauges_count_tokens() -> None:
    bench = Bench(tokens_per_step=3)
    bench.submit(request("a", PROMPT, 10), request("b", PROMPT, 4))
    bench.steps(2)
    assert bench.generation.used_tokens() == len(PROMPT) + 6
    bench.run()
    assert bench.generation.gauges() == {
        "running": 0,
        "waiting": 0,
        "arrived": 2,
        "aborts_received": 0,
        "steps": 4,
        "tokens": 14,
    }


def test_another_alphabet_is_used_throughout() -> None:
    assert set(expected(PROMPT, 60)) == set(ALPHABET)
