# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Multimodal workers (R6, R7) beside the incumbent's: same answers, and every end at every stage.

R6 answers, alone or behind a prefill worker (*disaggregated*); R7 is that prefill worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
from trio.testing import MockClock

from tests.fakes.multimodal import BOOTSTRAP, Embeddings, OtherWorker, image
from tests.fakes.script import (
    FINISH_ABORTED,
    FINISH_STOP,
    NEVER,
    EngineScript,
    Output,
    finish_error,
    tokens,
)

from .harness import Implementation
from .observation import Observation
from .scenario import Action, Request, Scenario, break_stream, cancel_owner, one, shutdown, stop

only_ours = pytest.mark.only("ours", "the incumbent's end is pinned beside it")
only_incumbent = pytest.mark.only("incumbent", "pins what the incumbent does instead")
both_roles = pytest.mark.parametrize("role", ["multimodal", "multimodal prefill"])

ERROR = {"token_ids": [], "finish_reason": "error", "finished": True}


def said(seen: Observation, request: int = 0) -> list[dict[str, Any]]:
    return [json.loads(item) for item in seen.requests[request].items]


def assert_released(seen: Observation, but: Sequence[str] = ()) -> None:
    """Embeddings that were received were released, each once, and nothing is left `but` that.

    What was logged with its traceback is kept by the log.
    """
    received = [entry.detail for entry in seen.journal.of("embeddings received")]
    released = [entry.detail for entry in seen.journal.of("embeddings released")]
    assert sorted(received) == sorted(released)
    assert seen.leftovers() == {}
    if seen.implementation == "ours" and not any(record.error for record in seen.logs):
        assert seen.not_freed == list(but)


# ---- the same answers ----


async def test_tokens_are_answered_in_json(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=(*tokens(2, finish=None)[:-1], Output(finish=FINISH_STOP)))
    seen = await implementation.run(one(script, role="multimodal"))
    assert said(seen) == [
        {"token_ids": [100], "index": 0, "text": "<100>", "finished": False},
        {"token_ids": [101], "index": 0, "text": "<101>", "finished": False},
        {
            "token_ids": [102],
            "index": 0,
            "text": "<102>",
            "finished": True,
            "finish_reason": "stop",
        },
    ]
    assert seen.times("embeddings released") == seen.times("output")[:1]
    assert_released(seen)


async def test_several_choices_keep_their_index(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=tokens(2), choice_delays=(0.0, 0.05))
    seen = await implementation.run(one(script, role="multimodal", n=2))
    assert [(answer["index"], answer["token_ids"]) for answer in said(seen)] == [
        (0, [100]),
        (1, [200]),
        (0, [101]),
        (1, [201]),
    ]
    assert [answer["finished"] for answer in said(seen)] == [False, False, True, True]
    if implementation.name == "ours":  # rule 118: SGLang itself leaves states behind
        # Its task of a choice keeps the error that ended it; from 3.12 on, that one's frames lead
        # to SGLang's own variables.
        assert_released(seen, but=["state"] if sys.version_info >= (3, 12) else [])


@pytest.mark.parametrize("disaggregated", [False, True])
async def test_an_engine_that_refuses_is_told_in_the_stream(
    implementation: Implementation, autojump_clock: MockClock, disaggregated: bool
) -> None:
    script = EngineScript(dispatch_error=ValueError("too long"))
    seen = await implementation.run(one(script, role="multimodal", disaggregated=disaggregated))
    assert said(seen) == [{**ERROR, "error": "too long"}]
    assert seen.error is None
    assert seen.effective_aborts == []
    assert_released(seen)


async def test_an_error_after_tokens_is_told_behind_them(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=tokens(9, finish=None), breakable=True)
    seen = await implementation.run(
        one(script, break_stream(RuntimeError("engine lost"), 0.25), role="multimodal")
    )
    assert seen.ids == [100, 101]
    assert said(seen)[-1] == {**ERROR, "error": "engine lost"}
    assert seen.error is None


@pytest.mark.parametrize(
    ("extra", "start"),
    [
        ({"request": {"token_ids": [1]}}, "2 validation errors for SglangMultimodalRequest"),
        ({"multimodal_inputs": [{"num_mm_tokens": 4}]}, "Encoded multimodal group missing grid"),
        ({"multimodal_inputs": [image(), image()]}, "Encoded token counts exceed received"),
    ],
)
@both_roles
async def test_a_request_that_cant_be_built_is_told_in_the_stream(
    implementation: Implementation,
    autojump_clock: MockClock,
    role: Any,
    extra: dict[str, Any],
    start: str,
) -> None:
    seen = await implementation.run(one(role=role, extra=extra))
    (answer,) = said(seen)
    assert {key: answer[key] for key in ERROR} == ERROR
    if role == "multimodal":
        assert answer["error"].startswith(start)
    else:
        assert start.split()[0] in answer["error"]
    assert ("bootstrap_room" in answer) == (role != "multimodal" and "request" not in extra)
    assert seen.journal.of("registered") == []
    assert seen.error is None
    assert_released(seen)


@both_roles
async def test_embeddings_that_do_not_arrive_are_told_in_the_stream(
    implementation: Implementation, autojump_clock: MockClock, role: Any
) -> None:
    embeddings = Embeddings(after=0.2, error=TimeoutError("nobody sent them"))
    seen = await implementation.run(one(role=role, embeddings=embeddings))
    (answer,) = said(seen)
    assert answer["error"] == "nobody sent them"
    assert seen.journal.of("registered") == []
    assert_released(seen)


@pytest.mark.parametrize("role", ["multimodal", "multimodal prefill"])
async def test_several_choices_of_a_pair_are_refused_by_type(
    implementation: Implementation, autojump_clock: MockClock, role: Any
) -> None:
    scenario = one(role=role, n=2, disaggregated=True)
    if role == "multimodal prefill":
        scenario = one(role=role, extra={"sampling_params": {"n": 2}})
    seen = await implementation.run(scenario)
    if role == "multimodal":
        assert type(seen.error) is InvalidArgument
        assert seen.journal.of("other worker asked") == []
    assert seen.leftovers() == {}


async def test_a_decode_worker_goes_where_the_prefill_worker_says(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    given: list[Any] = []

    def script(stage: Any) -> None:
        (rid,) = stage.engine.tokenizer_manager.rid_to_state
        given.append(stage.engine.tokenizer_manager.rid_to_state[rid].obj)

    seen = await implementation.run(
        one(
            EngineScript(outputs=tokens(2)),
            Action("call", on=("dispatched", 1), argument=script),
            role="multimodal",
            disaggregated=True,
        )
    )
    assert seen.ids == [100, 101]
    (obj,) = given
    assert (obj.bootstrap_host, obj.bootstrap_port, obj.bootstrap_room) == tuple(BOOTSTRAP.values())
    ((item,),) = ([obj.image_data],) if isinstance(obj.image_data, dict) else (obj.image_data,)
    assert item["format"] == "processor_output"
    assert seen.journal.of("embeddings asked") == []  # only the prefill worker fetches them
    assert_released(seen)


async def test_a_prefill_worker_that_tells_an_error_is_a_server_error(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    prefill = OtherWorker(answers=(json.dumps({**ERROR, "error": "no memory"}),))
    seen = await implementation.run(one(role="multimodal", disaggregated=True, prefill=prefill))
    assert said(seen) == [{**ERROR, "error": "no memory"}]
    assert seen.journal.of("registered") == []


async def test_a_prefill_opens_with_its_bootstrap_info_and_says_no_more(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(1)), role="multimodal prefill"))
    (opening,) = said(seen)
    assert opening.keys() == BOOTSTRAP.keys()
    assert seen.ended == seen.times("output")[0]
    assert seen.times("embeddings released") == seen.times("output")
    assert_released(seen)


async def test_a_prefill_that_answers_nothing_is_told_in_the_stream(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(outputs=NEVER, breakable=True)
    seen = await implementation.run(one(script, break_stream(None, 0.2), role="multimodal prefill"))
    opening, answer = said(seen)
    assert answer == {
        **ERROR,
        "error": "SGLang prefill stream ended before producing a result",
        "bootstrap_room": opening["bootstrap_room"],
    }


async def test_a_prefill_that_sglang_does_not_register_is_told_in_the_stream(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        one(EngineScript(registration_delay=60.0), role="multimodal prefill")
    )
    (answer,) = said(seen)
    assert answer["error"].startswith("SGLang did not register prefill request")
    assert answer["error"].endswith("within 5s")
    assert seen.ended == pytest.approx(5.0, abs=0.1)
    assert_released(seen)


# ---- what differs on purpose ----


async def test_requests_of_one_trace_have_rids_of_their_own(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """B21. The incumbent submits the trace id; SGLang refuses the second request that has it."""
    scenario = Scenario(
        requests=[
            Request(EngineScript(outputs=tokens(3)), trace_id="4bf9", arrives=arrives)
            for arrives in (0.0, 0.05)
        ],
        role="multimodal",
    )
    seen = await implementation.run(scenario)
    if implementation.name == "incumbent":
        assert "Duplicate request ID" in said(seen, 1)[0]["error"]
        return
    assert [record.ids for record in seen.requests] == [[100, 101, 102]] * 2
    assert len({entry.rid for entry in seen.journal.of("registered")}) == 2
    assert_released(seen)


@pytest.mark.parametrize("disaggregated", [False, True])
async def test_a_shutdown_migrates_what_streams(
    implementation: Implementation, autojump_clock: MockClock, disaggregated: bool
) -> None:
    """B19. The incumbent goes on, deaf, to the end of the stream."""
    script = EngineScript(outputs=tokens(9, finish=None))
    seen = await implementation.run(
        one(script, shutdown(0.35), role="multimodal", disaggregated=disaggregated)
    )
    if implementation.name == "incumbent":
        assert seen.ended is None
        return
    assert type(seen.error) is EngineShutdown
    assert seen.ended is not None
    assert seen.ended < 0.5
    assert len(seen.effective_aborts) == 1
    assert [answer.get("finish_reason") for answer in said(seen)] == [None] * len(said(seen))
    assert_released(seen)


async def test_an_abort_of_the_engines_is_a_shutdown_then(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """B19. To the incumbent it is an ordinary end of the stream."""
    script = EngineScript(outputs=(Output(), Output(0.5, finish=FINISH_ABORTED)), ignored_aborts=9)
    seen = await implementation.run(one(script, shutdown(0.599), role="multimodal"))
    if implementation.name == "incumbent":
        assert said(seen)[-1]["finish_reason"] == "cancelled"
        assert seen.error is None
        return
    assert type(seen.error) is EngineShutdown
    assert seen.ids == [100]


async def test_a_refusal_of_the_scheduler_has_its_type(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """B19. To the incumbent it is an ordinary end of the stream, with nothing said."""
    refusal = finish_error(400, "BadRequestError", "too long")
    script = EngineScript(outputs=(Output(tokens=0, finish=refusal),))
    seen = await implementation.run(one(script, role="multimodal"))
    if implementation.name == "incumbent":
        assert (seen.error, len(seen.items)) == (None, 1)
        return
    assert type(seen.error) is InvalidArgument
    assert seen.items == []
    assert_released(seen)


@pytest.mark.parametrize("at", [0.05, 0.25, 0.45])
@pytest.mark.parametrize("end", [stop, shutdown, cancel_owner])
@both_roles
@only_ours
async def test_every_end_at_every_stage(
    implementation: Implementation, autojump_clock: MockClock, role: Any, end: Any, at: float
) -> None:
    """0.05 s: embeddings on their way. 0.25 s: in tokenization. 0.45 s: running."""
    script = EngineScript(tokenize_delay=0.2, outputs=NEVER)
    seen = await implementation.run(
        one(script, end(at), role=role, embeddings=Embeddings(after=0.2))
    )
    assert (type(seen.error) is EngineShutdown) == (end is shutdown)
    assert seen.ended is not None
    assert seen.ended - at < 1.2
    assert len(seen.journal.of("registered")) == (at > 0.2)
    dispatched = seen.journal.of("dispatched")
    assert len(seen.effective_aborts) == len(dispatched) <= 1
    assert_released(seen)


@pytest.mark.parametrize("at", [0.05, 0.15, 0.35])
@pytest.mark.parametrize("end", [stop, shutdown, cancel_owner])
@only_ours
async def test_every_end_at_every_stage_of_a_pair(
    implementation: Implementation, autojump_clock: MockClock, end: Any, at: float
) -> None:
    """0.05 s: the prefill worker is asked. 0.15 s: it is silent. 0.35 s: decode runs."""
    prefill = OtherWorker(after=0.1, every=0.1, holds=True)
    seen = await implementation.run(
        one(
            EngineScript(outputs=NEVER),
            end(at),
            role="multimodal",
            disaggregated=True,
            prefill=prefill,
        )
    )
    assert (type(seen.error) is EngineShutdown) == (end is shutdown)
    assert seen.ended is not None
    assert seen.ended - at < 1.2
    assert len(seen.journal.of("dispatched")) == len(seen.effective_aborts) == (at > 0.2)
    # The stream of the other worker is kept as long as the request lives, and no longer.
    assert len(seen.times("answers let go")) == (at > 0.1)
    assert all(time >= at for time in seen.times("answers let go"))
    assert_released(seen)


@pytest.mark.parametrize(
    "prefill",
    [
        OtherWorker(refusal=EngineShutdown("prefill is leaving")),
        OtherWorker(answers=(), error=EngineShutdown("prefill is leaving")),
    ],
)
async def test_a_prefill_worker_that_leaves_lets_the_request_migrate(
    implementation: Implementation, autojump_clock: MockClock, prefill: OtherWorker
) -> None:
    """B19. The incumbent tells it in the stream, where nobody can take it for a migration."""
    seen = await implementation.run(one(role="multimodal", disaggregated=True, prefill=prefill))
    if implementation.name == "incumbent":
        assert "prefill is leaving" in said(seen)[0]["error"]
        return
    assert type(seen.error) is EngineShutdown
    assert seen.items == []
    assert seen.leftovers() == {}


@only_ours
async def test_a_request_waits_for_embeddings_that_are_under_way(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Its client has left: the buffer that somebody writes to is given back when that is over."""
    seen = await implementation.run(
        one(None, stop(0.1), role="multimodal", embeddings=Embeddings(after=3.0))
    )
    assert seen.ended is not None
    assert seen.ended < 0.2
    assert seen.times("embeddings received") == [3.0]
    assert seen.times("embeddings released") == [3.0]
    assert_released(seen)


@only_ours
async def test_the_bootstrap_info_waits_for_the_dispatch(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """What SGLang refuses after it has registered it, no decode worker waits for."""
    script = EngineScript(tokenize_delay=0.4, dispatch_error=ValueError("too long"))
    seen = await implementation.run(one(script, role="multimodal prefill"))
    (answer,) = said(seen)
    assert answer["error"] == "too long"
    script = EngineScript(tokenize_delay=7.0, outputs=tokens(1))
    seen = await implementation.run(one(script, role="multimodal prefill"))
    assert [output.time for output in seen.outputs] == [7.0]
    assert said(seen)[0].keys() == BOOTSTRAP.keys()


@only_incumbent
async def test_incumbent_authorizes_decode_for_what_is_refused(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    script = EngineScript(tokenize_delay=0.4, dispatch_error=ValueError("too long"))
    seen = await implementation.run(one(script, role="multimodal prefill"))
    opening, answer = said(seen)
    assert opening.keys() == BOOTSTRAP.keys()
    assert answer["error"] == "too long"
