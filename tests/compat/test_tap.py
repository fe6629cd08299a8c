# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""compat.tap: which outputs are handed over, and what is left to SGLang.

How a tapped request behaves as a whole is in ``tests/semantics`` and ``tests/simulation``.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from compat.handover import Handover
from compat.tap import Tap


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
