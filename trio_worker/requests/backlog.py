# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Merging of chunks that wait for a reader, when a request has several streams (n > 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compat.handover import Chunk
from trio_worker.responses import coalesce, wrap_native


def merge_by_stream(chunks: list[Chunk], customized_keys: Iterable[str] = ()) -> list[Chunk]:
    """One chunk for each engine id, in the order in which the ids first spoke, and its last one.

    `customized_keys`: metadata that is per token beside SGLang's own (`TapMixin.customized_keys`).

    The last chunk of a stream stays apart: if it is an error, what was merged with it would be
    lost (rule 121). Order within a stream is kept; between streams there is none to keep.
    """
    streams: dict[Any, list[Chunk]] = {}
    last: list[Chunk] = []
    for chunk in chunks:
        meta_info = chunk.get("meta_info") or {}
        if meta_info.get("finish_reason"):
            last.append(chunk)
        else:
            streams.setdefault(meta_info.get("id"), []).append(chunk)
    return [*(coalesce(stream, customized_keys) for stream in streams.values()), *last]


def merge_native_by_stream(chunks: list[Chunk], customized_keys: Iterable[str] = ()) -> list[Chunk]:
    """The same for chunks in native wrapping (`wrap_native`)."""
    answers = [chunk["engine_data"]["sglang_response"] for chunk in chunks]
    return [wrap_native(answer) for answer in merge_by_stream(answers, customized_keys)]
