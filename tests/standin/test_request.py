# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from tests.standin.harness import ALPHABET, request
from trio_worker.standin.request import Ending, natural_ending

PROMPT = [0, 1]  # the first generated letter is c


def ending(**fields: Any) -> Ending:
    known: dict[str, Any] = {"max_new_tokens": 100, "room": 1000, **fields}
    return natural_ending(prompt_ids=PROMPT, alphabet=ALPHABET, **known)


def test_the_length_is_what_was_asked_for() -> None:
    assert ending(max_new_tokens=7) == Ending(7, {"type": "length", "length": 7})


@pytest.mark.parametrize("asked", [None, 2000])
def test_the_context_bounds_the_length(asked: int | None) -> None:
    assert ending(max_new_tokens=asked, room=50).length == 50


def test_a_warm_up_of_parallel_sampling_generates_nothing() -> None:
    assert ending(max_new_tokens=0) == Ending(0, {"type": "length", "length": 0})


def test_a_stop_token_ends_with_it() -> None:
    e = ALPHABET[4]
    assert ending(stop_token_ids={e}) == Ending(3, {"type": "stop", "matched": e})


def test_a_stop_token_waits_for_the_minimum() -> None:
    e = ALPHABET[4]
    assert ending(stop_token_ids={e}, min_new_tokens=3).length == 29


@pytest.mark.parametrize(
    ("stop", "length"), [("d", 2), ("efg", 5), ("zab", 26), ("cd", 2), ("bcd", 28)]
)
def test_a_stop_string_ends_with_its_last_letter(stop: str, length: int) -> None:
    assert ending(stop_strings=[stop]) == Ending(length, {"type": "stop", "matched": stop})


def test_the_earliest_stop_string_counts() -> None:
    assert ending(stop_strings=["xyz", "no", "hi", "gh"]).reason["matched"] == "gh"


def test_a_stop_string_that_never_comes_does_not_end() -> None:
    assert ending(stop_strings=["acb"]).reason == {"type": "length", "length": 100}


def test_a_stop_string_waits_for_the_minimum() -> None:
    assert ending(stop_strings=["de"], min_new_tokens=3).length == 29


def test_a_stop_string_beats_a_stop_token_in_the_same_place() -> None:
    both = ending(stop_strings=["e"], stop_token_ids={ALPHABET[4]})
    assert both.reason == {"type": "stop", "matched": "e"}


@pytest.mark.parametrize(("every", "length"), [(10, 9), (2, 1), (3, 2)])
def test_end_of_sequence_stands_at_multiples(every: int, length: int) -> None:
    found = ending(eos_every=every, eos_id=2)
    assert found == Ending(length, {"type": "stop", "matched": 2}, last_token=2)


def test_end_of_sequence_can_be_ignored() -> None:
    assert ending(eos_every=10, eos_id=2, ignore_eos=True).length == 100


def test_faults_behind_the_end_do_not_strike() -> None:
    made = request(max_new_tokens=3, faults="die:at=4,stall:at=3,error:at=1")
    assert [fault.at for fault in made.strikes] == [1, 3]


def test_a_retraction_strikes_as_often_as_it_says() -> None:
    assert len(request(faults="retract:at=2:times=3").strikes) == 3


def test_the_arrival_has_its_own_fault() -> None:
    made = request(faults="error:at=0:status=503")
    assert made.on_arrival is not None
    assert made.on_arrival.status == 503
    assert made.strikes == []


def test_the_detokenizer_gets_the_end_of_the_prompt() -> None:
    assert list(request(prompt=range(9)).surrounding_ids()) == [4, 5, 6, 7, 8]
    assert list(request(prompt=[7, 8]).surrounding_ids()) == [7, 8]
