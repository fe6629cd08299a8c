# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Disaggregated prefill (R11): where to fetch the KV cache first, what was reused last."""

from typing import Any

from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.request_handlers.llm.decode_handler import _kv_cache_hit_engine_data

from trio_worker.responses.finish import SHUTDOWN_MESSAGE
from trio_worker.responses.state import Responses


def bootstrap_response(host: str, port: int, room: int) -> dict[str, Any]:
    """The first response of a prefill request; the prefill router needs it before prefill runs."""
    return {
        "token_ids": [],
        "text": None,
        "finish_reason": None,
        "disaggregated_params": {
            "bootstrap_host": host,
            "bootstrap_port": port,
            "bootstrap_room": room,
        },
    }


class PrefillResponses(Responses):
    """Equal to `PrefillWorkerHandler._consume_results` and the trailing response after it.

    `convert` never has anything to send. When the stream has ended and the request was neither
    cancelled nor stopped (rules 83, 85), `trailing()` is the one response that is left.
    Chunks may be SGLang's own or wrapped (`wrap_native`). Unlike the incumbent, which knows only
    the first id, `unfinished_ids` has them all.
    """

    __slots__ = ("_final_meta_info",)

    def __init__(self) -> None:
        super().__init__()
        self._final_meta_info: dict[str, Any] | None = None

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> dict[str, Any] | None:
        meta_info = _any_meta_info(chunk)
        self._track(meta_info)
        finish_reason = meta_info.get("finish_reason")
        if finish_reason:
            if shutting_down and finish_reason.get("type") == "abort":
                raise EngineShutdown(SHUTDOWN_MESSAGE)
            self._final_meta_info = meta_info
            self._finished.add(0)
        return None

    def observe(self, chunk: dict[str, Any]) -> None:
        self._track(_any_meta_info(chunk))

    def trailing(self) -> dict[str, Any] | None:
        """The cache-hit report for the router; None without a finished result or prompt count."""
        if self._final_meta_info is None:
            return None
        kv_cache_hit = _kv_cache_hit_engine_data(self._final_meta_info)
        if not kv_cache_hit:
            return None
        return {"token_ids": [], "engine_data": {"kv_cache_hit": kv_cache_hit}}


def _any_meta_info(chunk: dict[str, Any]) -> dict[str, Any]:
    meta_info: dict[str, Any] = chunk.get("meta_info") or (
        chunk.get("engine_data", {}).get("sglang_response", {}).get("meta_info", {})
    )
    return meta_info
