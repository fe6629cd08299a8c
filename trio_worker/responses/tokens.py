# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Token mode: SGLang's ids go out, the frontend turns them into text."""

from collections.abc import Callable
from typing import Any

from dynamo.common.backend.logprobs import (
    extract_from_sglang_meta,
    extract_prompt_logprobs_from_sglang_meta,
)
from dynamo.common.utils.engine_response import normalize_finish_reason
from dynamo.sglang.request_handlers.llm.decode_handler import (
    _extract_sglang_stop_reason,
    _kv_cache_hit_engine_data,
    _sglang_completion_usage,
)

from trio_worker.responses.echo import new_ids_in_echo, without_repeated_logprobs
from trio_worker.responses.finish import raise_for_abort
from trio_worker.responses.state import NO_META, Choice, Responses


class TokenResponses(Responses):
    """Equal to `DecodeWorkerHandler._process_token_stream`, but for the abort echo (rule 119).

    A response is `{"index", "token_ids"}` plus, where they apply, `finish_reason`, `stop_reason`,
    `log_probs`, `top_logprobs`, `completion_usage` and `engine_data`.

    Args:
        wants_logprobs: logprobs of output or prompt were asked for (`return_logprob` is among the
            engine's arguments). If not, no chunk is searched for any.
        return_tokens_as_token_ids: name top-logprob candidates `token_id:<id>`.
        user_stop_token_ids: the ids that may be told as stop reason (`_user_stop_token_ids`);
            None tells all of them.
        report_kv_cache_hit: tell the router of the cache hit in the final chunk. Not in
            disaggregated decode, nor with the prefix warm-up of n > 1.
    """

    __slots__ = (
        "_report_kv_cache_hit",
        "_return_tokens_as_token_ids",
        "_user_stop_token_ids",
        "_wants_logprobs",
    )

    def __init__(
        self,
        *,
        choices: int = 1,
        wants_logprobs: bool = False,
        return_tokens_as_token_ids: bool = False,
        user_stop_token_ids: set[int] | None = None,
        report_kv_cache_hit: bool = True,
        uploads: bool = False,
        notify_first_token: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(choices=choices, uploads=uploads, notify_first_token=notify_first_token)
        # Uploaded metadata takes the place of everything that is per token.
        self._wants_logprobs = wants_logprobs and not uploads
        self._return_tokens_as_token_ids = return_tokens_as_token_ids
        self._user_stop_token_ids = user_stop_token_ids
        self._report_kv_cache_hit = report_kv_cache_hit

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> dict[str, Any] | None:
        # Hot: once for every token of every stream. Each field is read once, and a plain chunk
        # costs its response and nothing else.
        meta_info = chunk.get("meta_info", NO_META)
        engine_id = meta_info.get("id")
        if engine_id:
            self.unfinished_ids.add(engine_id)
        index = chunk.get("index") or 0
        finish_reason = meta_info["finish_reason"]
        if finish_reason:
            self.unfinished_ids.discard(engine_id)
            return self._convert_final(
                chunk, meta_info, finish_reason, index, shutting_down=shutting_down
            )
        output_ids = chunk.get("output_ids")
        if not output_ids:
            return None
        if self._notify_first_token is not None:
            self._first_token()
        out = {"index": index, "token_ids": output_ids}
        if self._wants_logprobs:
            self._add_logprobs(out, meta_info)
        choice = self._by_index.get(index)
        if choice is None:
            choice = self._by_index[index] = Choice()
        choice.delivered += len(output_ids)
        if (
            meta_info.get("prompt_tokens") != choice.prompt_tokens
            or meta_info.get("cached_tokens") != choice.cached_tokens
        ):
            self._add_usage(out, meta_info, choice)
        if "engine_data" in chunk or "routed_experts" in meta_info:
            engine_data = self._engine_data(chunk, meta_info)
            if engine_data:
                out["engine_data"] = engine_data
        if self._uploads:
            # Only a choice's last metadata is uploaded; what came before may be large.
            meta_info.clear()
        return out

    def _convert_final(
        self,
        chunk: dict[str, Any],
        meta_info: dict[str, Any],
        finish_reason: dict[str, Any],
        index: int,
        *,
        shutting_down: bool,
    ) -> dict[str, Any]:
        raise_for_abort(finish_reason, shutting_down=shutting_down)
        out: dict[str, Any] = {
            "index": index,
            "finish_reason": normalize_finish_reason(finish_reason["type"]),
        }
        stop_reason = _extract_sglang_stop_reason(finish_reason, self._user_stop_token_ids)
        if stop_reason is not None:
            out["stop_reason"] = stop_reason

        choice = self._by_index.setdefault(index, Choice())
        output_ids = chunk.get("output_ids", [])
        logprobs_source = meta_info
        new_ids = new_ids_in_echo(meta_info, finish_reason, output_ids, choice.delivered)
        if new_ids is not None:
            output_ids = output_ids[:new_ids]
            logprobs_source = without_repeated_logprobs(meta_info, new_ids)
        if output_ids:
            choice.delivered += len(output_ids)
            if self._notify_first_token is not None:
                self._first_token()
        out["token_ids"] = output_ids
        if self._wants_logprobs:
            self._add_logprobs(out, logprobs_source)

        engine_data = self._engine_data(chunk, meta_info)
        self._add_usage(out, meta_info, choice)
        if self._wants_logprobs:
            prompt_logprobs = extract_prompt_logprobs_from_sglang_meta(meta_info)
            if prompt_logprobs is not None:
                engine_data["prompt_logprobs"] = prompt_logprobs
        if self._report_kv_cache_hit:
            # For the router, so it is sent even when the metadata is uploaded.
            kv_cache_hit = _kv_cache_hit_engine_data(meta_info)
            if kv_cache_hit:
                engine_data["kv_cache_hit"] = kv_cache_hit
        if engine_data:
            out["engine_data"] = engine_data
        if not self._uploads:
            self._finished.add(index)
        return out

    def _engine_data(self, chunk: dict[str, Any], meta_info: dict[str, Any]) -> dict[str, Any]:
        engine_data: dict[str, Any] = dict(chunk.get("engine_data") or {})
        routed_experts = meta_info.get("routed_experts")
        if routed_experts is not None and not self._uploads:
            engine_data["routed_experts"] = routed_experts
        return engine_data

    def _add_logprobs(self, out: dict[str, Any], meta_info: dict[str, Any]) -> None:
        log_probs, top_logprobs = extract_from_sglang_meta(
            meta_info, return_tokens_as_token_ids=self._return_tokens_as_token_ids
        )
        if log_probs is not None:
            out["log_probs"] = log_probs
        if top_logprobs is not None:
            out["top_logprobs"] = top_logprobs

    @staticmethod
    def _add_usage(out: dict[str, Any], meta_info: dict[str, Any], choice: Choice) -> None:
        usage = _sglang_completion_usage(meta_info)
        # Not remembered until it is complete, so that a later chunk can still report it.
        if usage:
            out["completion_usage"] = usage
            choice.prompt_tokens = meta_info.get("prompt_tokens")
            choice.cached_tokens = meta_info.get("cached_tokens")
