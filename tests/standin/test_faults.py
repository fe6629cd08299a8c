# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from trio_worker.standin.faults import WORKER_SIDE, FaultChooser, own_faults
from trio_worker.standin.script import FaultKind, ScriptError, parse_faults

SCHEDULER_SIDE = set(FaultKind) - WORKER_SIDE


def chooser(text: str, seed: int = 0, kinds: Any = SCHEDULER_SIDE) -> FaultChooser:
    return FaultChooser(parse_faults(text), seed, kinds)


def never() -> str:
    raise AssertionError("the prompt is only wanted if a fault asks for it")


def kinds(found: Any) -> list[str]:
    return [fault.kind.value for fault in found]


def test_without_a_selector_everybody_gets_the_fault() -> None:
    found = chooser("die:at=3").choose(custom_params=None, max_new_tokens=1, prompt=never)
    assert kinds(found) == ["die"]


def test_a_share_of_the_requests_by_seed() -> None:
    def drawn(seed: int) -> list[bool]:
        some = chooser("die:rate=0.3", seed)
        return [
            bool(some.choose(custom_params=None, max_new_tokens=1, prompt=never))
            for _ in range(1000)
        ]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert 200 < sum(drawn(1)) < 400


def test_other_selectors_do_not_change_the_draw() -> None:
    plain, picky = chooser("die:rate=0.5", 7), chooser("die:rate=0.5:max_tokens=5", 7)
    for i in range(100):
        tokens = 5 if i % 2 else 6
        a = plain.choose(custom_params=None, max_new_tokens=tokens, prompt=never)
        b = picky.choose(custom_params=None, max_new_tokens=tokens, prompt=never)
        assert len(b) == (len(a) if tokens == 5 else 0)


def test_by_text_in_the_prompt() -> None:
    some = chooser("die:prompt=please die")
    for prompt, expected in (("oh please die now", ["die"]), ("live", [])):
        found = some.choose(
            custom_params=None, max_new_tokens=1, prompt=lambda prompt=prompt: prompt
        )
        assert kinds(found) == expected


def test_a_request_brings_its_own_faults_first() -> None:
    found = chooser("stall").choose(
        custom_params={"stand_in": "die:at=2,retract"}, max_new_tokens=1, prompt=never
    )
    assert kinds(found) == ["die", "retract", "stall"]


def test_each_process_gets_its_own_kinds() -> None:
    text = "delay_dispatch,die"
    asked = {"custom_params": {"stand_in": text}, "max_new_tokens": 1, "prompt": never}
    assert kinds(chooser(text).choose(**asked)) == ["die", "die"]
    assert kinds(chooser(text, kinds=WORKER_SIDE).choose(**asked)) == ["delay_dispatch"] * 2


@pytest.mark.parametrize("params", [None, {}, {"thinking_budget": 3}, "text"])
def test_other_custom_parameters_are_none_of_ours(params: object) -> None:
    assert own_faults(params) == ()


@pytest.mark.parametrize("value", [3, "bang"])
def test_nonsense_of_a_request_is_an_error(value: object) -> None:
    with pytest.raises(ScriptError):
        own_faults({"stand_in": value})
