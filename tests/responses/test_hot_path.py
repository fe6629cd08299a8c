# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A plain token costs its response and nothing else."""

import tracemalloc

from tests.responses.chunks import chunk
from trio_worker.responses import TokenResponses, state, tokens

CHUNKS = 80


def test_a_plain_chunk_allocates_its_response_only() -> None:
    # Totals stay below CPython's cached integers, so that counting costs no object.
    chunks = [chunk([i], total=i) for i in range(1, CHUNKS + 1)]
    responses = TokenResponses(notify_first_token=lambda: None)
    responses.convert(chunks[0], shutting_down=False)
    kept = [responses.convert(each, shutting_down=False) for each in chunks]
    ours = [tracemalloc.Filter(True, module.__file__) for module in (tokens, state)]
    tracemalloc.start()
    try:
        kept = [responses.convert(each, shutting_down=False) for each in chunks]
        blocks = sum(
            stat.count
            for stat in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
        )
    finally:
        tracemalloc.stop()
    assert kept[-1] == {"index": 0, "token_ids": [CHUNKS]}
    # A dict is two blocks: the object and its table.
    # At most: free lists, filled by what ran before, may serve some.
    assert 0 < blocks <= 2 * CHUNKS
