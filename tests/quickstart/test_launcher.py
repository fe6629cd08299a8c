# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from trio_worker.quickstart.__main__ import parse
from trio_worker.quickstart.progress import MILESTONES, milestone


def test_what_follows_the_dashes_is_the_workers() -> None:
    options, worker_args = parse(["--smoke", "--", "--tp", "2", "--", "x"])
    assert options.smoke
    assert worker_args == ["--tp", "2", "--", "x"]


def test_defaults() -> None:
    options, worker_args = parse([])
    assert (options.smoke, options.model, options.worker) == (False, None, "trio_worker")
    assert worker_args == []


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--nonsense"])
    assert caught.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--demo", "--model", "x"], ["--demo", "--smoke"], ["--picture", "x.svg"]]
)
def test_what_does_not_go_together(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2


def test_milestone_is_the_last_one_that_the_log_shows() -> None:
    assert milestone("") == 0
    assert [milestone(line) for line, _ in MILESTONES] == list(range(len(MILESTONES)))
    assert milestone("\n".join(line for line, _ in MILESTONES)) == len(MILESTONES) - 1
    assert milestone("Load weight begin\nsome warning") == milestone("Load weight begin")
