# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""compat.tap: which outputs are handed over, and what is left to SGLang.

How a tapped request behaves as a whole is in ``tests/semantics`` and ``tests/simulation``.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from compat.handover import Handover
from compat.tap import Tap, tapped


def coalesce(outputs: Any, _keys: Any) -> dict[str, Any]:
    return {"ids": [token for output in outputs for token in output["ids"]]}


class State:
    """SGLang's ``ReqState``, as far as a tap knows it."""

    def __init__(self) -> None:
        self.out_list: list[dict[str, Any]] = []
        self.finished = False
        self.time_stats = SimpleNamespace(response_sent_to_client_time=1.0)
        self.customized_info_accumulated: dict[str, Any] = {}


class Tapped:
    """A tap on a state, and a reader that is not there."""

    def __init__(self, merge_at: int = 64) -> None:
        self.state = State()
        self.handover = Handover(merge_at=100)
        self.tap = Tap(self.state, self.handover, coalesce, merge_at)

    def output(self, *ids: int, finished: bool = False) -> None:
        self.state.out_list.append({"ids": list(ids)})
        self.state.finished = finished
        self.tap.set()


async def test_rule_121_what_waits_is_not_merged_with_the_last_output() -> None:
    """SGLang would merge them, and where the last one is an error the tokens would be lost."""
    tapped = Tapped()
    tapped.output(1)
    tapped.output(2)
    tapped.output(3, finished=True)
    assert tapped.state.out_list == [{"ids": [3]}]
    assert await tapped.handover.receive() == [{"ids": [1, 2]}]
    assert tapped.tap.is_set()


async def test_the_last_output_is_left_to_sglang() -> None:
    tapped = Tapped()
    tapped.output(1, finished=True)
    assert tapped.state.out_list == [{"ids": [1]}]
    assert tapped.handover.backlog == 0
    assert tapped.tap.take() == []
    await asyncio_free(tapped.tap)


async def asyncio_free(tap: Tap) -> None:
    """``wait`` of an event that is set awaits nothing, whatever the library."""
    assert await tap.wait()


async def test_what_waits_with_sglang_is_merged_beyond_the_limit() -> None:
    tapped = Tapped(merge_at=4)
    for token in range(100):
        tapped.output(token)
        assert len(tapped.state.out_list) <= 5
    assert tapped.tap.take() == [{"ids": list(range(100))}]


async def test_rule_120_nothing_leaves_set() -> None:
    tapped = Tapped()

    def deliver(_chunk: Any) -> None:
        raise asyncio.CancelledError

    tapped.handover.deliver = deliver
    tapped.handover.parked = True
    tapped.output(1)
    assert not tapped.handover.parked


class Manager:
    """SGLang's manager, as far as a scope and customized metadata go."""

    incremental_streaming_output = True

    def update_request_meta_info(
        self, meta_info: dict[str, Any], _state: Any, customized_info: dict[str, Any], index: int
    ) -> None:
        meta_info.update({key: values[index] for key, values in customized_info.items()})


def manager() -> Any:
    return tapped(Manager, merge=coalesce, merge_at=64)()


def asked(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"stream": True, "sampling_params": {}, **changed})


@pytest.mark.parametrize(
    ("obj", "request_of_sglang", "tapped_"),
    [
        (asked(), None, True),
        (asked(sampling_params={"beam_width": 1}), None, True),
        (asked(sampling_params={"beam_width": None}), None, True),
        (asked(sampling_params={"beam_width": 2}), None, False),
        (asked(stream=False), None, False),
        (SimpleNamespace(sampling_params={}), None, False),
        (asked(), object(), False),
    ],
)
def test_scope(obj: Any, request_of_sglang: Any, tapped_: bool) -> None:
    assert manager()._in_scope(obj, request_of_sglang) is tapped_


def test_cumulative_streams_are_outside_of_the_scope() -> None:
    one = manager()
    one.incremental_streaming_output = False
    assert not one._in_scope(asked(), None)


def test_the_engines_own_metadata_is_known_by_name_and_still_passed_on() -> None:
    one = manager()
    meta_info: dict[str, Any] = {}
    one.update_request_meta_info(meta_info, None, {"entropy": [[0.5]]}, 0)
    assert meta_info == {"entropy": [0.5]}
    assert one.customized_keys == {"entropy"}
