# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our flags: taken out exactly, with their twins in the environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trio_worker import __version__
from trio_worker.cli import WorkerOptions, split_args

DYNAMO = ["--model-path", "org/model", "--tp=2", "--served-model-name", "a b"]


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ([], WorkerOptions()),
        (["--shutdown-timeout", "12.5"], WorkerOptions(shutdown_timeout=12.5)),
        (["--shutdown-timeout=12.5"], WorkerOptions(shutdown_timeout=12.5)),
        (
            ["--stand-in-scheduler", "step_ms=8"],
            WorkerOptions(stand_in_scheduler="step_ms=8"),
        ),
        (["--stand-in-scheduler=step_ms=8"], WorkerOptions(stand_in_scheduler="step_ms=8")),
        (["--gc-policy", "off"], WorkerOptions(gc_policy="off")),
        (["--no-tap"], WorkerOptions(tap=False)),
        (["--no-tap", "--tap"], WorkerOptions(tap=True)),
        (
            ["--shutdown-timeout", "1", "--no-tap", "--shutdown-timeout", "2"],
            WorkerOptions(shutdown_timeout=2, tap=False),
        ),
    ],
)
@pytest.mark.parametrize("place", range(len(DYNAMO) + 1))
def test_ours_are_taken_out_wherever_they_stand(
    argv: list[str], options: WorkerOptions, place: int
) -> None:
    if DYNAMO[place - 1] in ("--model-path", "--served-model-name") and place:
        place -= 1  # not between a flag and its value
    assert split_args([*DYNAMO[:place], *argv, *DYNAMO[place:]], {}) == (options, DYNAMO)


@pytest.mark.parametrize(
    "argv",
    [
        ["--shutdown-time", "5"],  # argparse would take an abbreviation
        ["--gc", "off"],
        ["--no-tapping"],
        ["--", "--no-tap", "--shutdown-timeout", "5"],
        ["--json-model-override-args", '{"a": "--no-tap"}'],
        ["-x", "", " ", "=", "--=", "--a=b=c"],
    ],
)
def test_what_is_not_exactly_ours_is_left_alone(argv: list[str]) -> None:
    assert split_args(argv, {}) == (WorkerOptions(), argv)


def test_every_flag_has_a_twin_in_the_environment() -> None:
    env = {
        "DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS": "45",
        "TRIO_WORKER_STAND_IN_SCHEDULER": "step_ms=8",
        "TRIO_WORKER_GC": "off",
        "TRIO_WORKER_NO_TAP": "1",
    }
    assert split_args(DYNAMO, env) == (
        WorkerOptions(
            shutdown_timeout=45, stand_in_scheduler="step_ms=8", gc_policy="off", tap=False
        ),
        DYNAMO,
    )
    # The command line wins, also over a bad value that nobody looks at then.
    argv = [
        "--shutdown-timeout=3",
        "--stand-in-scheduler=step_ms=1",
        "--gc-policy=freeze",
        "--tap",
    ]
    assert split_args(argv, env | {"TRIO_WORKER_GC": "sometimes"}) == (
        WorkerOptions(shutdown_timeout=3, stand_in_scheduler="step_ms=1"),
        [],
    )


@pytest.mark.parametrize("value", ["", " ", "0", "false", "No", "off"])
def test_variables_that_say_no(value: str) -> None:
    assert split_args([], {"TRIO_WORKER_NO_TAP": value})[0].tap


def test_an_empty_variable_is_none() -> None:
    names = ("DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS", "TRIO_WORKER_GC")
    assert split_args([], dict.fromkeys(names, ""))[0] == WorkerOptions()


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["--shutdown-timeout", "0"], {}, "must be a number of seconds above 0, not 0"),
        (["--shutdown-timeout", "-1"], {}, "must be a number of seconds above 0, not -1"),
        (["--shutdown-timeout=inf"], {}, "must be a number of seconds above 0, not inf"),
        (["--shutdown-timeout=nan"], {}, "must be a number of seconds above 0, not nan"),
        (["--shutdown-timeout", "soon"], {}, "invalid _seconds value: 'soon'"),
        (["--shutdown-timeout"], {}, "expected one argument"),
        (["--shutdown-timeout", "--tp=2"], {}, "expected one argument"),
        (["--gc-policy", "never"], {}, "invalid choice: 'never'"),
        (["--no-tap=1"], {}, "ignored explicit argument '1'"),
        (["--stand-in-scheduler", "steps=8"], {}, "argument --stand-in-scheduler"),
        (
            [],
            {"DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS": "soon"},
            "(from DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS)",
        ),
        ([], {"TRIO_WORKER_GC": "never"}, "(from TRIO_WORKER_GC)"),
        ([], {"TRIO_WORKER_NO_TAP": "maybe"}, "not 'maybe' (from TRIO_WORKER_NO_TAP)"),
    ],
)
def test_bad_values_get_usage_and_status_2(
    argv: list[str], env: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        split_args(argv, env)
    assert leaving.value.code == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("usage: trio-worker [trio-worker options]")
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_ours_at_once_and_is_passed_on(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options, remaining = split_args([flag, "--no-tap"], {})
    assert options.help_asked
    assert remaining == [flag]
    shown = capsys.readouterr().out
    for name in (
        "--shutdown-timeout SECONDS",
        "DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS",
        "--stand-in-scheduler SCRIPT",
        "TRIO_WORKER_STAND_IN_SCHEDULER",
        "--gc-policy {freeze,off}",
        "TRIO_WORKER_GC",
        "--tap, --no-tap",
        "TRIO_WORKER_NO_TAP",
    ):
        assert name in shown


def test_help_after_two_dashes_is_none() -> None:
    assert not split_args(["--", "--help"], {})[0].help_asked


def test_version_names_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        split_args(["--version"], {})
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith(f"trio-worker {__version__} (Dynamo ")


@pytest.mark.parametrize("form", ["--model-path {}", "--model {}", "--model-path={}", "--model={}"])
@pytest.mark.parametrize("path", ["/nope/model", "./nope", "../nope"])
def test_a_path_that_is_not_there_is_told_at_once(
    form: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        split_args(["--tp", "2", *form.format(path).split()], {})
    assert leaving.value.code == 1
    assert capsys.readouterr().err == f"trio-worker: error: model path '{path}' does not exist\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["--model-path", "/nope", "--model-path", "/"],  # the last one wins
        ["--model-path", "org/model"],
        ["--model-path", "s3://bucket/model"],
        ["--model-path"],
        ["--served-model-name", "/nope"],
    ],
)
def test_other_models_are_the_parsers_affair(argv: list[str]) -> None:
    assert split_args(argv, {}) == (WorkerOptions(), argv)


def test_help_needs_no_model() -> None:
    assert split_args(["--model-path", "/nope", "--help"], {})[0].help_asked


def test_splitting_needs_nothing_slow() -> None:
    script = (
        "import sys; from trio_worker.cli import split_args; split_args(['--no-tap'], {});"
        "print([m for m in ('sglang', 'torch', 'dynamo', 'trio', 'trio_asyncio') "
        "if m in sys.modules])"
    )
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert child.stdout == "[]\n"
