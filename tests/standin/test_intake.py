# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import json
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.standin.harness import ALPHABET
from tests.standin.tiny_model import write_tiny_model
from trio_worker.standin.intake import UNSTREAMED_INTERVAL, Intake, Model
from trio_worker.standin.script import parse_script


def intake(script: str = "", *, prefill: bool = False, **model: Any) -> Intake:
    facts: dict[str, Any] = {
        "context_length": 100,
        "vocab_size": 1024,
        "hidden_size": 8,
        "alphabet": ALPHABET,
        "eos_id": 2,
        **model,
    }
    return Intake(parse_script(script), Model(**facts), prefill=prefill, stream_interval=1)


def message(**fields: Any) -> SimpleNamespace:
    """The fields of TokenizedGenerateReqInput that the stand-in reads."""
    sampling: dict[str, Any] = {
        "max_new_tokens": 5,
        "min_new_tokens": 0,
        "ignore_eos": False,
        "stop_token_ids": None,
        "stop_strs": [],
        "stream_interval": None,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "no_stop_trim": False,
        "custom_params": None,
    }
    known: dict[str, Any] = {
        "rid": "r",
        "http_worker_ipc": None,
        "input_text": None,
        "input_ids": array("q", [5, 6, 7]),
        "input_embeds": None,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": True,
        "dimensions": None,
        "token_type_ids": None,
    }
    for name, value in fields.items():
        (sampling if name in sampling else known)[name] = value
    return SimpleNamespace(**known, sampling_params=SimpleNamespace(**sampling))


def test_a_plain_request() -> None:
    made = intake().generate(message(http_worker_ipc="ipc"), "stats")
    assert (made.rid, made.http_worker_ipc, made.time_stats) == ("r", "ipc", "stats")
    assert list(made.prompt_ids) == [5, 6, 7]
    assert (made.ending.length, made.stream_interval, made.logprobs) == (5, 1, None)


@pytest.mark.parametrize(("asked", "length"), [(None, 95), (1000, 95), (95, 95), (94, 94)])
def test_the_context_bounds_the_length(asked: int | None, length: int) -> None:
    made = intake().generate(message(max_new_tokens=asked), None)
    assert made.ending.length == length


def test_capacity_bounds_prompts_as_sglang_says() -> None:
    assert intake().max_prompt_length == 94
    assert intake("capacity=50").max_prompt_length == 44


def test_who_does_not_stream_is_rarely_heard() -> None:
    assert intake().generate(message(stream=False), None).stream_interval == UNSTREAMED_INTERVAL
    assert intake().generate(message(stream_interval=7), None).stream_interval == 7


def test_logprobs_are_taken_over() -> None:
    made = intake().generate(
        message(return_logprob=True, top_logprobs_num=3, logprob_start_len=1), None
    )
    assert made.logprobs is not None
    assert (made.logprobs.top, made.logprobs.start) == (3, 1)


@pytest.mark.parametrize(("asked", "length"), [(1, 1), (50, 1), (0, 0)])
def test_a_prefill_server_gives_one_token(asked: int, length: int) -> None:
    made = intake(prefill=True).generate(message(max_new_tokens=asked), None)
    assert made.ending.length == length
    assert made.ending.reason == {"type": "length", "length": 0}


@pytest.mark.parametrize("stops", ["ij", ["ij"]])
def test_stop_strings_come_as_text_or_list(stops: Any) -> None:
    made = intake().generate(message(stop_strs=stops), None)
    assert made.ending.reason == {"type": "stop", "matched": "ij"}


def test_a_refused_request_ends_with_a_400() -> None:
    made = intake().generate(message(), None, refusal="no such session")
    assert made.to_finish == {
        "type": "abort",
        "message": "no such session",
        "status_code": 400,
        "err_type": "BadRequestError",
    }


def test_faults_come_from_script_and_request() -> None:
    made = intake("fault=die:at=2").generate(message(custom_params={"stand_in": "stall"}), None)
    assert [fault.kind.value for fault in made.faults] == ["stall", "die"]


def test_nonsense_of_a_request_refuses_it() -> None:
    made = intake("fault=die").generate(message(custom_params={"stand_in": "bang"}), None)
    assert made.faults == ()
    assert made.to_finish is not None
    assert "unknown kind 'bang'" in made.to_finish["message"]


def test_health_checks_have_no_faults() -> None:
    made = intake("fault=die").generate(message(rid="HEALTH_CHECK_1"), None)
    assert made.faults == ()


def test_a_marker_is_found_in_text_and_in_tokens(tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path) / "tokenizer.json"
    vocabulary = json.loads(file.read_text())["model"]["vocab"]
    ids = array("q", [vocabulary[letter] for letter in "xdiex"])
    some = intake("fault=die:prompt=die", tokenizer_file=str(file))
    assert len(some.generate(message(input_text="do die"), None).faults) == 1
    assert len(some.generate(message(input_ids=ids), None).faults) == 1
    assert len(some.generate(message(input_ids=ids[2:]), None).faults) == 0


def test_a_prompt_of_embeddings_has_a_length() -> None:
    made = intake().generate(message(input_ids=None, input_embeds=[[0.0]] * 4), None)
    assert made.prompt_tokens == 4


def test_embeddings_have_the_size_that_is_asked_for() -> None:
    assert len(intake().embed(message(), None).embedding) == 8
    assert len(intake("dims=5").embed(message(), None).embedding) == 5
    assert len(intake("dims=5").embed(message(dimensions=3), None).embedding) == 3


def test_a_pair_gets_a_score() -> None:
    pair = message(input_ids=array("q", [1, 2, 2, 9]), token_type_ids=[0, 0, 1, 1])
    assert intake().embed(pair, None).embedding == 0.5
