# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 110-117: what the frontend needs of a worker in order to move a request elsewhere.

It migrates on ``EngineShutdown`` only, keeps the tokens that it has, and asks for the rest.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from dynamo.llm.exceptions import EngineShutdown
from trio.testing import MockClock

from tests.fakes.script import FINISH_ABORTED, NEVER, EngineScript, Output, finish_error, tokens

from .harness import Implementation
from .observation import Observation
from .scenario import MODES, Action, Request, Scenario, break_stream, lose, one, shutdown, stop

ENDLESS = EngineScript(outputs=tokens(50))
every_mode = pytest.mark.parametrize("mode", MODES)


@every_mode
@pytest.mark.parametrize("n", [None, 2])
async def test_rule_110_the_shutdown_error_leaves_the_handler(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, n: int | None
) -> None:
    """Not a chunk, not a log line and a clean end: the very class that the frontend looks for."""
    seen = await implementation.run(one(ENDLESS, shutdown(0.25), mode=mode, n=n))
    assert type(seen.error) is EngineShutdown
    assert seen.requests[0].finish_reasons == []
    assert len(seen.ids) == 2 * (n or 1)


BREAKABLE = EngineScript(outputs=tokens(50), breakable=True)
ERRORS: dict[str, Scenario] = {
    "refused at registration": one(
        EngineScript(registration_delay=0.1, registration_error=ValueError("refused"))
    ),
    "refused at registration, shut down": one(
        EngineScript(registration_delay=0.2, registration_error=ValueError("refused")),
        shutdown(0.1),
    ),
    "refused by the tokenizer": one(EngineScript(dispatch_error=ValueError("too long"))),
    "engine error": one(
        EngineScript(outputs=(Output(finish=finish_error(500, "InternalError", "broken")),))
    ),
    "broken stream": one(BREAKABLE, break_stream(RuntimeError("broken"), 0.25)),
    "broken stream, shut down": one(
        BREAKABLE, break_stream(RuntimeError("broken"), on=("shutdown", 1)), shutdown(0.25)
    ),
    "shut down": one(ENDLESS, shutdown(0.25)),
    "shut down and stopped": one(ENDLESS, shutdown(0.25), stop(0.25)),
    "shut down, abort refused": one(
        EngineScript(outputs=tokens(50), abort_send_errors=1), shutdown(0.25)
    ),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_rule_111_errors_leave_bare(
    implementation: Implementation, autojump_clock: MockClock, name: str
) -> None:
    """Never a group, never Trio's cancellation: both would be "Unknown" to the frontend."""
    seen = await implementation.run(ERRORS[name])
    assert isinstance(seen.error, Exception)
    assert not isinstance(seen.error, BaseExceptionGroup | trio.Cancelled)
    if "shut down" in name:
        assert type(seen.error) is EngineShutdown


def produced(seen: Observation) -> list[int]:
    return [token for entry in seen.journal.of("output") for token in entry.detail["ids"]]


@every_mode
@pytest.mark.parametrize("hops", range(0, 20, 3))
async def test_rule_112_what_was_sent_is_a_prefix_and_nothing_follows_the_error(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, hops: int
) -> None:
    """A burst of four outputs comes some passes of the loop after the shutdown, at 0.5 s."""
    script = EngineScript(outputs=(Output(0.1, tokens=2), *NEVER), abort_latency=0.5)
    burst = Action("emit", 0.5, argument=Output(messages=4), hops=hops)
    seen = await implementation.run(one(script, shutdown(0.5), burst, mode=mode))
    assert type(seen.error) is EngineShutdown
    assert seen.ids == produced(seen)[: len(seen.ids)]
    assert [output.time for output in seen.outputs if output.time > 0.5] == []
    ended = next(index for index, entry in enumerate(seen.events) if entry.event == "ended")
    assert [entry for entry in seen.events[ended:] if entry.event == "chunk"] == []


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize("hops", range(0, 20, 3))
async def test_rule_113_no_finish_comes_before_the_error(
    implementation: Implementation, autojump_clock: MockClock, mode: Any, hops: int
) -> None:
    """The engine's answer to our abort comes in the instant of the shutdown, at 0.5 s."""
    script = EngineScript(outputs=(Output(0.1), *NEVER), abort_latency=0.5)
    answer = Action("emit", 0.5, argument=Output(finish=FINISH_ABORTED), hops=hops)
    seen = await implementation.run(one(script, shutdown(0.5), answer, mode=mode))
    assert type(seen.error) is EngineShutdown
    assert seen.requests[0].finish_reasons == []
    assert seen.ids == [100]


pushed = pytest.mark.only("ours", "the incumbent's SGLang endpoints are on the pull path")


@pushed
async def test_rule_115_an_error_is_raised_not_sent(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """``close_with_error`` has no type, and what has no type is not migrated."""
    seen = await implementation.run(one(ENDLESS, shutdown(0.25)))
    sender = seen.requests[0].sender
    assert sender is not None
    assert type(seen.error) is EngineShutdown
    assert sender.error is None
    assert seen.journal.of("response closed with error") == []


@pushed
async def test_rule_115_a_lost_consumer_is_not_an_error(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """``send`` raises at 0.3 s and stops the context: nobody is left to be told."""
    seen = await implementation.run(one(ENDLESS, lose(0.25)))
    assert seen.error is None
    assert seen.messages(logging.WARNING) == []
    assert [time for time, _ in seen.effective_aborts] == [0.3]
    assert seen.leftovers() == {}


@pushed
@every_mode
async def test_rule_116_nothing_is_yielded_on_the_push_path(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(3)), mode=mode))
    assert seen.ids == [100, 101, 102]
    assert seen.requests[0].polled == 0


@every_mode
async def test_rule_116_the_pull_arm_stays(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """Canaries and in-process calls bring no sender."""
    seen = await implementation.run(one(EngineScript(outputs=tokens(3)), mode=mode, arm="pull"))
    assert seen.ids == [100, 101, 102]
    assert seen.requests[0].polled == 3
    assert seen.leftovers() == {}


@pushed
async def test_rule_117_a_stopped_request_closes_its_response(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(ENDLESS, stop(0.25)))
    sender = seen.requests[0].sender
    assert sender is not None
    assert sender.closed
    assert sender.error is None
    assert seen.error is None


@pushed
async def test_rule_117_a_response_is_closed_once_after_its_last_frame(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """So is every other one: of two requests, each closes its own."""
    script = EngineScript(outputs=tokens(3))
    seen = await implementation.run(Scenario(requests=[Request(script), Request(script)]))
    assert len(seen.journal.of("response closed")) == 2
    for record in seen.requests:
        assert record.sender is not None
        assert len(record.sender.frames) == 3
        assert record.sender.closed
