# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Merging of outputs that wait for a reader."""

from collections.abc import Iterable, Sequence
from typing import Any

from sglang.srt.managers.tokenizer_manager import _INCREMENTAL_STREAMING_META_INFO_KEYS

FIRST_SENT = "response_sent_to_client_ts"
"""Only in the first chunk of a stream (`TokenizerManager._stream_one_response`)."""


class _Tally:
    merged_away = 0


def coalesced() -> int:
    """Chunks of this process that are no longer there, since they were merged into another."""
    return _Tally.merged_away


def coalesce(
    chunks: Sequence[dict[str, Any]], customized_info_keys: Iterable[str] = ()
) -> dict[str, Any]:
    """One chunk for several pending incremental ones of the same stream, in order.

    The ids, the text and the metadata that is per token (logprobs, sampling masks and the keys in
    `customized_info_keys`, i.e. `ReqState.customized_info_accumulated`) are concatenated; all else
    is the last chunk's. Equal to `TokenizerManager._coalesce_streaming_chunks`, with three
    differences: no "Streaming backlog" warning, since a merge is our normal way of waiting; the
    time stamp of the stream's first chunk stays, since SGLang merges before it stamps; and a
    chunk may lack the text or the ids that the last one has. SGLang raises KeyError there, and
    it happens: without a tokenizer only the abort echo (`_handle_abort_req`) has a text.

    The chunks are not changed, but a single one is returned as it is.
    """
    last = chunks[-1]
    if len(chunks) == 1:
        return last
    _Tally.merged_away += len(chunks) - 1
    merged = dict(last)
    if "output_ids" in merged:
        merged["output_ids"] = [i for chunk in chunks for i in chunk.get("output_ids", ())]
    if "text" in merged:
        merged["text"] = "".join(chunk.get("text", "") for chunk in chunks)
    if "meta_info" in merged:
        metas = [chunk["meta_info"] for chunk in chunks]
        meta_info = dict(metas[-1])
        for key in {*_INCREMENTAL_STREAMING_META_INFO_KEYS, *customized_info_keys}:
            if any(key in meta for meta in metas):
                meta_info[key] = [item for meta in metas for item in meta.get(key, ())]
        if FIRST_SENT in metas[0]:
            meta_info[FIRST_SENT] = metas[0][FIRST_SENT]
        merged["meta_info"] = meta_info
    return merged
