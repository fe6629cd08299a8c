# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The ordered end of a whole cluster."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.e2e.served import Ending, Served

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120), pytest.mark.ends_cluster]


STOP_S = 20.0
"""Seconds in which an idle worker must be gone, also where others want the processors."""


def assert_clean(ending: Ending, workers: int = 1) -> None:
    assert ending.statuses == {**{f"worker-{n}": 0 for n in range(workers)}, "frontend": 0}
    assert ending.descendants == []
    assert ending.left_behind == []
    assert ending.registered == []
    # Before the stop there may be some: the runtime prints one for each request that is refused.
    _, stop, leaving = ending.worker_output.partition("starting graceful shutdown")
    assert stop
    assert "Traceback" not in leaving
    # Nobody was there: the grace of 5 s is not waited for.
    assert re.search(r"\(drain\) took \S+ s: idle", leaving)
    assert ending.seconds < STOP_S


def test_real_engine_leaves_nothing(served: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("recitation"))


def test_stand_in_leaves_nothing(stand_in: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("stand_in"))
