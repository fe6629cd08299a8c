# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Equal to the incumbent on streams from a seed, whatever they hold."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.responses.chunks import random_stream
from tests.responses.oracle import Chunk, incumbent, ours
from trio_worker.responses import coalesce

SEEDS = range(500)


@pytest.mark.parametrize("mode", ["tokens", "text", "native"])
@pytest.mark.parametrize("seed", SEEDS)
def test_equals_the_incumbent(seed: int, mode: str) -> None:
    stream = random_stream(seed, mode)
    mine, theirs = ours(stream.fed), incumbent(stream.clean)
    assert mine.events == theirs.events
    assert mine.error == theirs.error
    assert mine.unfinished_ids == theirs.unfinished_ids
    assert mine.aborted == theirs.aborted
    if stream.fed.chunks == stream.clean.chunks:
        assert mine.exact() == theirs.exact()


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize("seed", range(200))
def test_merged_outputs_equal_too(seed: int, mode: str) -> None:
    """An echo is told from what waited before it (rule 119), wherever the merge cuts."""
    stream = random_stream(seed, mode, choices=1)
    rng = random.Random(seed)
    cuts = [rng.random() < 0.4 for _ in stream.fed.chunks]

    def merged(chunks: list[Chunk]) -> list[Chunk]:
        groups: list[list[Chunk]] = []
        for chunk, cut in zip(chunks, cuts, strict=True):
            if cut or not groups:
                groups.append([])
            groups[-1].append(chunk)
        return [coalesce(group) for group in groups]

    calm = {"stop_at": None, "shutdown_at": None}
    mine = ours(replace(stream.fed, chunks=merged(stream.fed.chunks), **calm))
    theirs = incumbent(replace(stream.clean, chunks=merged(stream.clean.chunks), **calm))
    assert mine.events == theirs.events
    assert mine.error == theirs.error
    assert mine.unfinished_ids == theirs.unfinished_ids


@pytest.mark.parametrize("mode", ["tokens", "text", "native"])
def test_the_seeds_reach_every_kind_of_end(mode: str) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        stream = random_stream(seed, mode)
        journal = ours(stream.fed)
        seen["echo"] += stream.fed.chunks != stream.clean.chunks
        seen[journal.error[0].__name__ if journal.error else "normal"] += 1
        seen["aborted"] += bool(journal.aborted)
        for event in journal.events:
            seen[event[0]] += 1
            for key in event[1] if event[0] == "send" else ():
                seen[key] += 1
    expected = {
        "tokens": "normal EngineShutdown InvalidArgument HttpError OSError upload notify aborted "
        "echo log_probs top_logprobs stop_reason completion_usage engine_data",
        "text": "normal EngineShutdown InvalidArgument HttpError OSError upload notify aborted "
        "echo nvext",
        "native": "normal notify aborted",
    }
    rare = {kind: seen[kind] for kind in expected[mode].split() if seen[kind] < 5}
    assert not rare
