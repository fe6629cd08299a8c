# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Rules 1-8: how a request can be aborted, and under which name the engine knows it.

Ordered mode: our own rid is known before the first output, so that an abort can be ordered behind
the dispatch. Response-id mode: the ids are SGLang's and are learnt from chunks.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
from trio.testing import MockClock

from tests.fakes.script import NEVER, EngineScript, Output, tokens

from .harness import Implementation
from .scenario import CALLER_RID, Request, Scenario, one, shutdown, stop

SILENT_UNTIL_1S = EngineScript(prefill_delay=0.9, outputs=tokens(5))
SPEAKS_AT_01 = EngineScript(outputs=tokens(5, finish=None))


async def test_rule_001_ordered_mode_needs_a_registry_with_dispatch_times(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """With both, a stop at 0.05 s is an abort at 0.05 s, though no output has told an id."""
    seen = await implementation.run(one(SILENT_UNTIL_1S, stop(0.05)))
    assert seen.count("SGLang ordered cancellation support: True") == 1
    assert seen.effective_aborts == [(0.05, seen.submitted_rid)]
    assert seen.leftovers() == {}


async def test_rule_001_without_a_registry_mapping_the_response_id_is_used(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SPEAKS_AT_01, stop(0.15), registry="list"))
    assert seen.count("SGLang ordered cancellation support: False") == 1
    assert seen.effective_aborts == [(0.15, seen.rid())]
    assert seen.leftovers() == {}


@pytest.mark.parametrize(
    ("mode", "sampling"),
    [
        ("tokens", {}),
        ("tokens", {"n": 1}),
        ("native", {"n": 1}),
        ("native", {"n": 2, "beam_width": 2}),
    ],
)
async def test_rule_002_one_choice_or_a_beam_is_aborted_by_the_submitted_rid(
    implementation: Implementation,
    autojump_clock: MockClock,
    mode: Any,
    sampling: dict[str, int],
) -> None:
    seen = await implementation.run(one(SILENT_UNTIL_1S, stop(0.05), mode=mode, sampling=sampling))
    assert seen.effective_aborts == [(0.05, seen.submitted_rid)]
    assert seen.leftovers() == {}


@pytest.mark.parametrize("mode", ["tokens", "text", "native"])
async def test_rule_002_several_choices_are_never_aborted_by_the_submitted_rid(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    """SGLang gives the choices of n > 1 rids of their own; ours would match nothing."""
    seen = await implementation.run(one(SPEAKS_AT_01, stop(0.15), mode=mode, n=2))
    children = [entry.rid for entry in seen.journal.of("dispatched")][1:]  # [0]: prefix warm-up
    assert len(children) == 2
    assert seen.submitted_rid not in children
    assert sorted(seen.effective_aborts) == [(0.15, rid) for rid in sorted(children)]
    assert {rid for _, rid in seen.aborts_called} == set(children)


async def test_rule_003_a_native_batch_is_aborted_by_the_rids_of_its_prompts(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SPEAKS_AT_01, stop(0.15), mode="native", batch=2))
    rid = seen.submitted_rid
    assert sorted(seen.effective_aborts) == [(0.15, f"{rid}_0"), (0.15, f"{rid}_1")]
    assert rid not in {called for _, called in seen.aborts_called}
    assert seen.leftovers() == {}


@pytest.mark.parametrize(("rid", "expected"), [(CALLER_RID, CALLER_RID), (None, "dynamo-request")])
async def test_rule_004_a_session_keeps_the_public_rid(
    implementation: Implementation,
    autojump_clock: MockClock,
    rid: str | None,
    expected: str,
) -> None:
    """SGLang finds a session's next turn by the rid of its last: the caller must know it."""
    seen = await implementation.run(
        one(EngineScript(outputs=tokens(3)), mode="native", session=True, rid=rid)
    )
    assert seen.rid() == seen.submitted_rid == expected
    assert seen.ids == [100, 101, 102]
    assert seen.aborts_called == []
    assert seen.leftovers() == {}


async def test_rule_005_response_ids_are_learnt_from_the_chunks(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Two of three choices have spoken before the stop at 0.25 s: both are aborted then."""
    script = EngineScript(outputs=tokens(9, finish=None), choice_delays=(0.0, 0.1, 0.4))
    seen = await implementation.run(one(script, stop(0.25), n=3))
    spoken = {
        entry.rid
        for entry in seen.journal.of("output")
        if entry.time < 0.25 and entry.detail["ids"]
    }
    assert len(spoken) == 2
    assert spoken <= {rid for time, rid in seen.effective_aborts if time == 0.25}


@pytest.mark.fixed("no rid of ours: a silent engine is not aborted, and ids of a trace collide")
@pytest.mark.parametrize("mode", ["tokens", "text"])
async def test_rule_006_a_diffusion_model_is_aborted_by_the_submitted_rid(
    implementation: Implementation, autojump_clock: MockClock, mode: Any
) -> None:
    seen = await implementation.run(one(SILENT_UNTIL_1S, stop(0.05), role="dllm", mode=mode))
    assert re.fullmatch("[0-9a-f]{32}", seen.rid())
    assert seen.effective_aborts == [(0.05, seen.rid())]
    assert seen.leftovers() == {}


async def test_rule_006_a_diffusion_model_answers_as_decode_does(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(4)), role="dllm"))
    assert seen.ids == [100, 101, 102, 103]
    assert seen.count("Submitted SGLang Request ID") == 0
    assert seen.leftovers() == {}


async def test_rule_006_several_choices_of_a_diffusion_model_are_aborted_once_they_speak(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SPEAKS_AT_01, stop(0.15), role="dllm", n=2))
    children = [entry.rid for entry in seen.journal.of("dispatched")][1:]
    assert sorted(seen.effective_aborts) == [(0.15, rid) for rid in sorted(children)]


@pytest.mark.fixed("no rid of ours: a shutdown is not noticed before the first output")
async def test_rule_006_a_silent_diffusion_request_migrates(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=NEVER), shutdown(0.05), role="dllm"))
    assert seen.ended is not None
    assert seen.ended < 0.2
    assert type(seen.error) is EngineShutdown
    assert seen.leftovers() == {}


@pytest.mark.only("incumbent", "it learns the engine's id from the first output")
async def test_rule_006_incumbent_aborts_by_the_id_of_the_first_output(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(SPEAKS_AT_01, stop(0.15), role="dllm"))
    assert re.fullmatch("[0-9a-f]{32}", seen.rid())
    assert seen.count("Submitted SGLang Request ID") == 0
    assert seen.effective_aborts == [(0.15, seen.rid())]
    assert seen.leftovers() == {}
    silent = await implementation.run(one(SILENT_UNTIL_1S, stop(0.05), role="dllm"))
    assert [time for time, _ in silent.effective_aborts] == [1.0]


async def test_rule_007_the_engine_rid_is_ours_and_random(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    """Two requests of one trace at the same time (D5): both finish, under rids of their own."""
    scenario = Scenario(
        requests=[Request(EngineScript(outputs=tokens(3)), trace_id="4bf9") for _ in range(2)]
    )
    seen = await implementation.run(scenario)
    rids = [entry.rid for entry in seen.journal.of("registered")]
    assert len(set(rids)) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", str(rid)) for rid in rids)
    assert [record.ids for record in seen.requests] == [[100, 101, 102]] * 2
    assert seen.leftovers() == {}


def native_ids(seen: Any) -> list[str]:
    return [item["engine_data"]["sglang_response"]["meta_info"]["id"] for item in seen.items]


async def test_rule_007_the_public_rid_comes_back_in_native_mode(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(2)), mode="native"))
    assert seen.rid() != CALLER_RID
    assert native_ids(seen) == [CALLER_RID] * 2


async def test_rule_007_the_public_rids_of_a_batch_come_back(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(
        one(
            EngineScript(outputs=(Output(finish={"type": "stop", "matched": 2}),)),
            mode="native",
            batch=2,
        )
    )
    assert sorted(native_ids(seen)) == [f"{CALLER_RID}_0", f"{CALLER_RID}_1"]


async def test_rule_007_rids_that_sglang_chose_are_not_mapped(
    implementation: Implementation, autojump_clock: MockClock
) -> None:
    seen = await implementation.run(one(EngineScript(outputs=tokens(1)), mode="native", n=2))
    children = {entry.rid for entry in seen.journal.of("dispatched")[1:]}
    assert set(native_ids(seen)) == children


@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_rule_008_disaggregated_roles_refuse_several_choices(
    implementation: Implementation, autojump_clock: MockClock, role: Any
) -> None:
    seen = await implementation.run(one(SPEAKS_AT_01, role=role, disaggregated=True, n=2))
    assert type(seen.error) is InvalidArgument
    assert seen.ended == 0.0
    assert seen.journal.of("registered") == []
    assert seen.leftovers() == {}
