# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.roles.submission: how many streams a request has."""

from __future__ import annotations

from typing import Any

import pytest

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from trio_worker.roles.submission import choices_of, native_choices


@pytest.mark.parametrize(
    ("params", "choices"),
    [
        (None, 1),
        ({}, 1),
        ({"n": None}, 1),
        ({"n": 3}, 3),
        ({"n": 3, "beam_width": 2}, 1),
        ([{"n": 2}, {"n": 2}], 4),
        ([], 1),
    ],
)
def test_a_prompt_has_as_many_streams_as_samples(params: Any, choices: int) -> None:
    assert choices_of(params) == choices


@pytest.mark.parametrize(
    ("params", "input_ids", "choices"),
    [
        ({}, [1, 2, 3], 1),
        ({"n": 2}, [1, 2, 3], 2),
        ({}, [[1, 2], [3]], 2),
        ({"n": 2}, [[1, 2], [3], [4]], 6),
        ([{"n": 1}, {"n": 1}], [[1], [2]], 2),
        (None, None, 1),
    ],
)
def test_rule_081_a_native_batch_has_the_streams_of_all_its_prompts(
    params: Any, input_ids: Any, choices: int
) -> None:
    """Fewer, and the request would be taken for complete after its first prompt (rule 129)."""
    assert native_choices(params, input_ids) == choices
