# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A rerank worker on the real engine, behind the real frontend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.served import Ending, Served
from tests.e2e.test_stopping import assert_clean
from trio_worker.quickstart.chat import post

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

DOCUMENTS = ["a dog in the sea", "the cat on the mat", "fish"]


async def rank(served: Served, *documents: str) -> list[tuple[int, float]]:
    """Trio. Index and score, best first."""
    payload = {"model": served.model, "query": "the cat", "documents": documents}
    answer = await post(served.port, "/v1/rerank", payload)
    assert answer.status == 200, answer.errors
    return [(one["index"], one["score"]) for one in answer.body]


async def test_each_document_has_a_score_of_its_own(reranker: Served) -> None:
    ranked = await rank(reranker, *DOCUMENTS)
    assert sorted(index for index, _ in ranked) == [0, 1, 2]
    scores = [score for _, score in ranked]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(DOCUMENTS)
    for index, score in ranked:
        assert await rank(reranker, DOCUMENTS[index]) == [(0, pytest.approx(score, abs=0.02))]


@pytest.mark.timeout(120)
# The last here, not of the session: nobody else needs this cluster, and it takes memory.
def test_it_leaves_nothing(reranker: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("reranker"))
