# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Checks that reports from the field suggest, where they are about one request.

The numbers are those of the list of the twelve most valuable checks. 1 and 3 are rules 19-27 and
67-72, 4 is rule 7, 6 is rules 35-41 and 110-113; those about a process are proved there.
"""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.fakes.script import EngineScript, Output, tokens

from .harness import Implementation
from .scenario import MODES, Action, Leave, Scenario, cancel_owner, one

# An empty chunk at 0.1 s, tokens at 0.2 s and 0.3 s; the last of them, or the first of fifty.
UNFINISHED = EngineScript(outputs=(Output(tokens=0), *tokens(50)))
FINISHED = EngineScript(outputs=(Output(tokens=0), *tokens(2)))

LEAVING: dict[str, tuple[Scenario, int]] = {
    "cancelled before the first chunk": (one(UNFINISHED, cancel_owner(0.05)), 1),
    "cancelled after an empty chunk": (one(UNFINISHED, cancel_owner(0.15)), 1),
    "cancelled after a real chunk": (one(UNFINISHED, cancel_owner(0.25)), 1),
    "closed before the first poll": (one(UNFINISHED, leave=Leave(0), arm="pull"), 0),
    "closed after a real chunk": (one(UNFINISHED, leave=Leave(1), arm="pull"), 1),
    "closed after the final chunk": (one(FINISHED, leave=Leave(2), arm="pull"), 0),
    "dropped before the first poll": (one(UNFINISHED, leave=Leave(0, "drop"), arm="pull"), 0),
    "dropped after a real chunk": (one(UNFINISHED, leave=Leave(1, "drop"), arm="pull"), 1),
    "dropped after the final chunk": (one(FINISHED, leave=Leave(2, "drop"), arm="pull"), 0),
    "raised at a real chunk": (one(UNFINISHED, first_token_error=KeyError("conversion")), 1),
    "raised at the final chunk": (
        one(EngineScript(outputs=tokens(1)), first_token_error=KeyError("conversion")),
        0,
    ),
}


@pytest.mark.parametrize("how", LEAVING)
async def test_field_check_02_leaving_early_aborts_once_what_is_unfinished(
    implementation: Implementation, autojump_clock: MockClock, how: str
) -> None:
    scenario, aborts = LEAVING[how]
    seen = await implementation.run(scenario)
    assert len(seen.effective_aborts) == aborts
    assert len(seen.aborts_sent) == aborts
    if "raised" in how:
        assert repr(seen.error) == "KeyError('conversion')"
    else:
        assert seen.error is None
    assert seen.requests[0].owner_cancelled is ("cancelled" in how)
    assert seen.leftovers() == {}


@pytest.mark.parametrize("mode", MODES)
async def test_field_check_10_fifty_outputs_in_a_tick_to_a_reader_that_sleeps(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """It takes one chunk, sleeps through two bursts until 2 s, and misses nothing."""
    script = EngineScript(
        outputs=(Output(), Output(messages=50), Output(1.0, tokens=2, messages=50), *tokens(1))
    )
    seen = await implementation.run(
        one(script, Action("read on", 2.0), mode=mode, stops_reading_after=1, arm="pull")
    )
    assert seen.ids == list(range(100, 100 + 1 + 50 + 100 + 1))
    assert seen.requests[0].finish_reasons == ["length"]
    assert len(seen.items) <= 1 + 50 + 1  # merged, not queued one by one
    assert seen.leftovers() == {}


async def test_field_check_10_also_without_incremental_output(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Dynamo forces incremental output, but a chunk that carries all tokens is no loss either."""
    script = EngineScript(outputs=(Output(), Output(messages=50), *tokens(1)))
    seen = await implementation.run(
        one(script, mode="native", server_args={"incremental_streaming_output": False})
    )
    last = seen.items[-1]["engine_data"]["sglang_response"]
    assert last["output_ids"] == list(range(100, 152))
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    assert seen.leftovers() == {}
