# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The columns of SGLang's output messages.

Pure: columns come out as the keyword arguments of ``io_struct.BatchTokenIDOutput`` and
``BatchEmbeddingOutput`` (SGLang 0.5.21, as ``SchedulerOutputStreamer`` fills them); the process
puts them into the message, so nothing here imports SGLang.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trio_worker.standin.request import SURROUNDING_TOKENS, FinishReason, Logprobs, Request
from trio_worker.standin.roster import Roster

_LOGPROB_COLUMNS = tuple(
    f"{side}_{what}_{part}"
    for side in ("input", "output")
    for what in ("token_logprobs", "top_logprobs", "token_ids_logprobs")
    for part in ("val", "idx")
)


@dataclass(slots=True)
class Row:
    """One request's part of a message, if it is more than a full chunk in the middle.

    ids: generated since the last row. completion: generated so far, with these.
    first: the request's first row, which tells the detokenizer the end of the prompt.
    """

    request: Request
    ids: array[int]
    completion: int
    first: bool
    finished: FinishReason | None = None
    weight_versions: Any = None


def logprob_of(token: int) -> float:
    """Made-up, by token only, and exact in binary so that tests may compare."""
    return -(1 + token % 8) / 16


def _top(token: int, k: int, alphabet: Sequence[int]) -> tuple[list[float], list[int]]:
    best = logprob_of(token)
    others = [letter for letter in alphabet if letter != token]
    ids = [token, *others][:k]
    return [best - j / 16 for j in range(len(ids))], ids


def _logprob_entry(
    wanted: Logprobs, tokens: Sequence[int], alphabet: Sequence[int], side: str
) -> dict[str, list[Any]]:
    tops = [_top(token, wanted.top, alphabet) for token in tokens] if wanted.top else []
    some = list(wanted.token_ids) if wanted.token_ids is not None else None
    per_token = [[logprob_of(token) for token in some] for _ in tokens] if some is not None else []
    return {
        f"{side}_token_logprobs_val": [logprob_of(token) for token in tokens],
        f"{side}_token_logprobs_idx": list(tokens),
        f"{side}_top_logprobs_val": [values for values, _ in tops],
        f"{side}_top_logprobs_idx": [ids for _, ids in tops],
        f"{side}_token_ids_logprobs_val": per_token,
        f"{side}_token_ids_logprobs_idx": [some for _ in per_token],
    }


def _prompt_entry(wanted: Logprobs, request: Request, alphabet: Sequence[int]) -> dict[str, Any]:
    """Nothing predicts the first prompt token asked for, so its logprobs are None."""
    if not 0 <= wanted.start < request.prompt_tokens:
        return {}
    entry = _logprob_entry(wanted, list(request.prompt_ids[wanted.start :]), alphabet, "input")
    for name, values in entry.items():
        if values and name != "input_token_logprobs_idx":
            values[0] = None
    return entry


def logprob_columns(
    dense: int, rows: Sequence[Row], alphabet: Sequence[int], *, with_prompt: bool
) -> dict[str, Any]:
    """All None unless a row wants logprobs; then a list a column, empty for those that do not."""
    if all(row.request.logprobs is None for row in rows):
        return dict.fromkeys(_LOGPROB_COLUMNS)
    columns: dict[str, list[Any]] = {
        name: [[] for _ in range(dense + len(rows))] for name in _LOGPROB_COLUMNS
    }
    for i, row in enumerate(rows, start=dense):
        wanted = row.request.logprobs
        if wanted is None:
            continue
        entry = _logprob_entry(wanted, row.ids, alphabet, "output")
        if row.first and with_prompt:
            entry |= _prompt_entry(wanted, row.request, alphabet)
        for name, values in entry.items():
            columns[name][i] = values
    return columns


def token_columns(
    roster: Roster,
    output_ids: list[array[int]],
    completion_tokens: list[int],
    rows: Sequence[Row],
    alphabet: Sequence[int],
    *,
    dp_rank: int | None = None,
    with_prompt_logprobs: bool = True,
) -> dict[str, Any]:
    """Arguments of BatchTokenIDOutput: the roster's requests first, then the rows.

    output_ids and completion_tokens belong to the roster. time_stats is the plain list.
    """
    size = len(roster) + len(rows)
    requests = [row.request for row in rows]
    outputs = output_ids + [row.ids for row in rows]
    decodes = outputs
    if any(row.first for row in rows):
        decodes = output_ids + [
            row.request.surrounding_ids() + row.ids if row.first else row.ids for row in rows
        ]
    nothing = [None] * size
    zeros = [0] * size
    finished = [None] * len(roster) + [row.finished for row in rows]
    versions: list[Any] | None = None
    if any(row.weight_versions for row in rows):
        versions = [None] * len(roster) + [row.weight_versions for row in rows]
    return {
        "rids": roster.rids + [r.rid for r in requests],
        "http_worker_ipcs": roster.http_worker_ipcs + [r.http_worker_ipc for r in requests],
        "finished_reasons": finished,
        "decoded_texts": [""] * size,
        "decode_ids": decodes,
        "read_offsets": roster.read_offsets
        + [min(r.prompt_tokens, SURROUNDING_TOKENS) for r in requests],
        "output_ids": outputs,
        "skip_special_tokens": roster.skip_special_tokens
        + [r.skip_special_tokens for r in requests],
        "spaces_between_special_tokens": roster.spaces_between_special_tokens
        + [r.spaces_between_special_tokens for r in requests],
        "no_stop_trim": roster.no_stop_trim + [r.no_stop_trim for r in requests],
        "prompt_tokens": roster.prompt_tokens + [r.prompt_tokens for r in requests],
        "reasoning_tokens": zeros,
        "completion_tokens": completion_tokens + [row.completion for row in rows],
        "cached_tokens": zeros,
        "cached_tokens_details": nothing,
        "image_tokens": zeros,
        "audio_tokens": zeros,
        "video_tokens": zeros,
        "retraction_counts": roster.retraction_counts + [r.retractions for r in requests],
        "weight_versions": versions,
        "dp_ranks": [dp_rank] * size,
        "time_stats": roster.time_stats + [r.time_stats for r in requests],
        **logprob_columns(len(roster), rows, alphabet, with_prompt=with_prompt_logprobs),
        "output_token_entropy_val": None,
        "output_token_sampling_mask": None,
        "output_hidden_states": None,
        "routed_experts": None,
        "indexer_topk": None,
        "placeholder_tokens_idx": None,
        "placeholder_tokens_val": None,
        "spec_verify_ct": [],
        "spec_num_correct_drafts": [],
        "spec_num_block_accept_tokens": [],
        "spec_num_cap_tokens": [],
        "spec_correct_drafts_histogram": [],
        "spec_cap_lens_histogram": [],
    }


def embedding_of(prompt_ids: Sequence[int], dims: int) -> list[float]:
    """A unit vector that depends on the prompt only; equal prompts give equal vectors."""
    source = random.Random(array("q", prompt_ids).tobytes())
    values = [source.uniform(-1.0, 1.0) for _ in range(dims)]
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / norm for value in values]


def relevance_of(prompt_ids: Sequence[int], segment_ids: Sequence[int]) -> float:
    """A cross-encoder's score in [0, 1]: what share of the query's tokens the document has.

    segment_ids: 0 for the query, 1 for the document, as BERT tokenizers give them.
    """
    query = {token for token, segment in zip(prompt_ids, segment_ids, strict=True) if not segment}
    document = {token for token, segment in zip(prompt_ids, segment_ids, strict=True) if segment}
    return len(query & document) / len(query) if query else 0.0


def embedding_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Arguments of BatchEmbeddingOutput. A request that ends early has an empty embedding."""
    requests = [row.request for row in rows]
    return {
        "rids": [r.rid for r in requests],
        "http_worker_ipcs": [r.http_worker_ipc for r in requests],
        "finished_reasons": [row.finished for row in rows],
        "embeddings": [
            r.embedding if row.finished and row.finished["type"] != "abort" else []
            for r, row in zip(requests, rows, strict=True)
        ],
        "prompt_tokens": [r.prompt_tokens for r in requests],
        "cached_tokens": [0] * len(rows),
        "cached_tokens_details": [None] * len(rows),
        "placeholder_tokens_idx": None,
        "placeholder_tokens_val": None,
        "retraction_counts": [r.retractions for r in requests],
        "time_stats": [r.time_stats for r in requests],
    }
