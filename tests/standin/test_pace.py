# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import pytest

from trio_worker.standin.pace import CATCH_UP_S, Pace


def test_at_rest_nothing_is_due() -> None:
    assert Pace(0.01).wait(5.0) is None


def test_the_first_tick_comes_one_interval_after_the_start() -> None:
    pace = Pace(0.01)
    pace.start(5.0)
    assert pace.wait(5.0) == pytest.approx(0.01)
    assert pace.wait(6.0) == 0.0


def test_starting_again_changes_nothing() -> None:
    pace = Pace(0.01)
    pace.start(5.0)
    pace.start(5.005)
    assert pace.wait(5.005) == pytest.approx(0.005)


def test_a_little_late_is_made_up_for() -> None:
    pace = Pace(0.01)
    pace.start(0.0)
    pace.ticked(0.018)
    assert pace.wait(0.018) == pytest.approx(0.002)
    assert pace.skipped == 0


def test_very_late_skips_what_was_missed_and_counts_it() -> None:
    pace = Pace(0.01)
    pace.start(0.0)
    late = CATCH_UP_S + 0.055
    pace.ticked(late)
    assert pace.wait(late) == pytest.approx(0.01)
    assert pace.skipped == 13


def test_rest_begins_the_rhythm_anew() -> None:
    pace = Pace(0.01)
    pace.start(0.0)
    pace.rest()
    pace.start(7.0)
    assert pace.wait(7.0) == pytest.approx(0.01)


def test_without_an_interval_every_tick_is_due_and_none_is_skipped() -> None:
    pace = Pace(0.0)
    pace.start(0.0)
    pace.ticked(10.0)
    assert pace.wait(10.0) == 0.0
    assert pace.skipped == 0
