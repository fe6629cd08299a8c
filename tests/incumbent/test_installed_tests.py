# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's tests, first against itself, which proves the mechanism, then against ours."""

from __future__ import annotations

import pytest

from tests.incumbent.run import run

INSTALLED = 249
"""85 of decode, 15 of prefill, 41 of image diffusion and rerank, 3 of LLM diffusion, 23 of
multimodal, 27 of frontend decoding, 32 of the embedding cache, 17 of media in requests and 6 of
health, in ai-dynamo 1.6.1."""

pytestmark = pytest.mark.timeout(600)  # each run pays SGLang's import in a process of its own


def test_the_incumbent_passes_its_own_tests_on_plain_asyncio() -> None:
    status, report = run("incumbent", "-q")
    assert report["failed"] == []
    assert report["outcomes"] == {"passed": INSTALLED}
    assert report["left_out"] == {}
    assert not report["trio_asyncio_imported"]
    assert status == 0


def test_ours_passes_those_that_apply() -> None:
    status, report = run("ours", "-q")
    assert report["failed"] == []
    assert report["outcomes"]["passed"] + len(report["left_out"]) == INSTALLED
    assert all(report["left_out"].values())
    assert status == 0
