# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from trio_worker.standin.script import (
    FOREVER,
    Fault,
    FaultKind,
    ScriptError,
    StandInScript,
    parse_faults,
    parse_script,
)


def test_empty_text_is_the_default_script() -> None:
    assert parse_script("") == StandInScript()


def test_every_setting_is_read() -> None:
    script = parse_script(
        "step_ms=2.5,tokens_per_step=3,prefill_ms=never,max_running=4,queue_limit=0,burst=6,"
        "eos_every=7,capacity=8,dims=9,seed=-1,load=raise,load_ms=10,shutdown_ms=never,"
        "log=/some/where.jsonl"
    )
    assert script == StandInScript(
        step_ms=2.5,
        tokens_per_step=3,
        prefill_ms=FOREVER,
        max_running=4,
        queue_limit=0,
        burst=6,
        eos_every=7,
        capacity=8,
        dims=9,
        seed=-1,
        load="raise",
        load_ms=10.0,
        shutdown_ms=FOREVER,
        log="/some/where.jsonl",
    )


def test_faults_are_read_in_order_with_their_defaults() -> None:
    script = parse_script("fault=die:at=100:rate=0.25, fault=hang ,step_ms=1,fault=burst")
    assert script.faults == (
        Fault(FaultKind.DIE, at=100, rate=0.25),
        Fault(FaultKind.HANG, ms=FOREVER),
        Fault(FaultKind.BURST, size=50),
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("error:status=503", Fault(FaultKind.ERROR, status=503)),
        ("error:status=none:message=x y", Fault(FaultKind.ERROR, message="x y")),
        (
            "error:status=400:type=BadRequestError:at=0",
            Fault(FaultKind.ERROR, at=0, status=400, err_type="BadRequestError"),
        ),
        ("ignore_abort", Fault(FaultKind.IGNORE_ABORT, times=0)),
        ("ignore_abort:times=2", Fault(FaultKind.IGNORE_ABORT, times=2)),
        ("retract:at=4:times=2:ms=5", Fault(FaultKind.RETRACT, at=4, times=2, ms=5.0)),
        ("die:how=kill", Fault(FaultKind.DIE, how="kill")),
        ("stall:prompt=please stall", Fault(FaultKind.STALL, ms=FOREVER, prompt="please stall")),
        ("delay_dispatch:ms=7:max_tokens=3", Fault(FaultKind.DELAY_DISPATCH, ms=7.0, max_tokens=3)),
    ],
)
def test_parameters_of_a_fault(text: str, fault: Fault) -> None:
    assert parse_faults(text) == (fault,)


def test_faults_of_a_request_may_carry_the_prefix() -> None:
    assert parse_faults("fault=die:at=3, retract") == (
        Fault(FaultKind.DIE, at=3),
        Fault(FaultKind.RETRACT),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_ms", "'step_ms' is not of the form name=value"),
        ("stepms=1", "unknown setting 'stepms'; known: step_ms"),
        ("step_ms=1,step_ms=2", "'step_ms' is given twice"),
        ("step_ms=-1", "bad value '-1' for step_ms"),
        ("step_ms=never", "bad value 'never' for step_ms"),
        ("tokens_per_step=0", "at least 1"),
        ("load=maybe", "ok or exit or raise"),
        ("fault=bang", "unknown kind 'bang'; known: ignore_abort"),
        ("fault=die:k=3", "unknown parameter 'k=3'; die takes at"),
        ("fault=die:at", "unknown parameter 'at'"),
        ("fault=die:rate=2", "between 0 and 1"),
        ("fault=retract:at=0", "at least 1"),
        ("fault=error:status=50", "bad value '50' for status"),
    ],
)
def test_errors_name_the_part(text: str, says: str) -> None:
    with pytest.raises(ScriptError, match=says):
        parse_script(text)


def test_a_script_travels_to_another_process() -> None:
    script = parse_script("step_ms=1,fault=die:at=3")
    assert pickle.loads(pickle.dumps(script)) == script
