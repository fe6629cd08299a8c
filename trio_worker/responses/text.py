# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Text mode (`--use-sglang-tokenizer`): SGLang's text goes out as OpenAI chat chunks."""

import time
from collections.abc import Callable
from typing import Any

from dynamo.common.utils.engine_response import normalize_finish_reason
from dynamo.sglang.request_handlers.llm.decode_handler import (
    _extract_sglang_stop_reason,
    _nvext_extra_field_requested,
)

from trio_worker.responses.echo import new_ids_in_echo, new_text_in_echo
from trio_worker.responses.finish import raise_for_abort
from trio_worker.responses.state import NO_META, Choice, Responses


class TextResponses(Responses):
    """Equal to `DecodeWorkerHandler._process_text_stream`, but for the abort echo (rule 119).

    A response is a `chat.completion.chunk`, also for a chunk without text (a token that is not a
    whole character yet), plus `nvext` with `stop_reason` (if the request asks for that field) and
    `routed_experts`.

    Args:
        context_id: id of every response: the request's context id.
        model: served model name.
        request: where `nvext.extra_fields` is looked up; None asks for nothing.
        user_stop_token_ids: the ids that may be told as stop reason; None tells all of them.
        now: clock for `created`, seconds since the epoch.
    """

    __slots__ = (
        "_context_id",
        "_model",
        "_now",
        "_user_stop_token_ids",
        "_wants_stop_reason",
    )

    def __init__(
        self,
        *,
        context_id: str,
        model: str,
        request: dict[str, Any] | None = None,
        choices: int = 1,
        user_stop_token_ids: set[int] | None = None,
        uploads: bool = False,
        notify_first_token: Callable[[], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(choices=choices, uploads=uploads, notify_first_token=notify_first_token)
        self._context_id = context_id
        self._model = model
        self._now = now
        self._user_stop_token_ids = user_stop_token_ids
        self._wants_stop_reason: bool = _nvext_extra_field_requested(request or {}, "stop_reason")

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> dict[str, Any] | None:
        meta_info = chunk.get("meta_info", NO_META)
        self._track(meta_info)
        index = chunk.get("index") or 0
        text = chunk.get("text", "")
        output_ids: Any = chunk.get("output_ids")
        choice = self._by_index.get(index)
        if choice is None:
            choice = self._by_index[index] = Choice()

        finish_reason = meta_info["finish_reason"]
        finish_type: str | None = None
        stop_reason: Any = None
        if finish_reason:
            raise_for_abort(finish_reason, shutting_down=shutting_down)
            finish_type = normalize_finish_reason(finish_reason["type"])
            if self._wants_stop_reason:
                stop_reason = _extract_sglang_stop_reason(finish_reason, self._user_stop_token_ids)
            new_ids = new_ids_in_echo(meta_info, finish_reason, output_ids, choice.delivered)
            if new_ids is not None:
                output_ids = output_ids[:new_ids]
                text = new_text_in_echo(text, new_ids, choice.text_length)
        if output_ids:
            choice.delivered += len(output_ids)
            if self._notify_first_token is not None:
                self._first_token()
        if text:
            choice.text_length += len(text)

        out: dict[str, Any] = {
            "id": self._context_id,
            "created": int(self._now()),
            "choices": [
                {
                    "index": index,
                    "delta": {"role": "assistant", "content": text},
                    "finish_reason": finish_type,
                }
            ],
            "model": self._model,
            "object": "chat.completion.chunk",
        }
        nvext: dict[str, Any] = {}
        if stop_reason is not None:
            nvext["stop_reason"] = stop_reason
        if not self._uploads:
            routed_experts = meta_info.get("routed_experts")
            if routed_experts is not None:
                nvext["routed_experts"] = routed_experts
            if finish_reason:
                self._finished.add(index)
        elif not finish_reason:
            # Only a choice's last metadata is uploaded; what came before may be large.
            meta_info.clear()
        if nvext:
            out["nvext"] = nvext
        return out
