# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Native mode: SGLang's own `/generate` answers pass through, under the caller's request id."""

from collections.abc import Callable
from typing import Any

from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.request_handlers.llm.decode_handler import (
    _kv_cache_hit_engine_data,
    _public_native_response_id,
)

from trio_worker.responses.echo import new_ids_in_echo, new_text_in_echo
from trio_worker.responses.finish import SHUTDOWN_MESSAGE
from trio_worker.responses.state import Choice, Responses, choice_index, meta_info_of


def wrap_native(response: dict[str, Any]) -> dict[str, Any]:
    """SGLang's chunk as `dynamo.sglang.engine_generate.native_generate_stream` yields it."""
    return {"token_ids": [], "engine_data": {"sglang_response": response}}


class NativeResponses(Responses):
    """Equal to `DecodeWorkerHandler._process_native_generate_stream`, but for rule 39.

    The incumbent sends the abort that a shutdown causes and raises `EngineShutdown` only after it;
    a final chunk before that error ends the request in the frontend (rule 113), so here it is not
    sent. Other aborts stay opaque, errors too: they are what SGLang's own server would answer. The
    abort echo repeats nothing (rule 119).

    Chunks are wrapped (`wrap_native`). Neither they nor what they hold is changed: SGLang may keep
    the answer for its logs and dumps.

    Args:
        internal_request_id: our id, submitted to the engine.
        response_request_id: the id that the caller knows, a list of them for a batch; None maps
            nothing.
        report_kv_cache_hit: as in `TokenResponses`.
    """

    __slots__ = (
        "_internal_request_id",
        "_report_kv_cache_hit",
        "_response_request_id",
    )

    def __init__(
        self,
        *,
        choices: int = 1,
        internal_request_id: str | None = None,
        response_request_id: str | list[str] | None = None,
        report_kv_cache_hit: bool = True,
        notify_first_token: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(choices=choices, notify_first_token=notify_first_token)
        self._internal_request_id = internal_request_id
        self._response_request_id = response_request_id
        self._report_kv_cache_hit = report_kv_cache_hit

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> dict[str, Any] | None:
        response = chunk["engine_data"]["sglang_response"]
        meta_info = meta_info_of(response)
        self._track(meta_info)
        finish_reason = meta_info.get("finish_reason")
        if shutting_down and finish_reason and finish_reason.get("type") == "abort":
            raise EngineShutdown(SHUTDOWN_MESSAGE)
        if self._notify_first_token is not None and (
            response.get("output_ids") or response.get("text")
        ):
            self._first_token()

        unrepeated = self._without_echo(response, meta_info, finish_reason)
        out = chunk
        if unrepeated is not response:
            response = unrepeated
            out = _with_engine_data(chunk, sglang_response=response)
        if self._response_request_id is not None:
            engine_id = meta_info.get("id")
            public_id = _public_native_response_id(
                engine_id,
                response.get("index"),
                self._internal_request_id,
                self._response_request_id,
            )
            if public_id != engine_id:
                public_response = {**response, "meta_info": {**meta_info, "id": public_id}}
                out = _with_engine_data(out, sglang_response=public_response)
        if finish_reason:
            if self._report_kv_cache_hit:
                kv_cache_hit = _kv_cache_hit_engine_data(meta_info)
                if kv_cache_hit:
                    out = _with_engine_data(out, kv_cache_hit=kv_cache_hit)
            self._finished.add(choice_index(response))
        return out

    def _without_echo(
        self,
        response: dict[str, Any],
        meta_info: dict[str, Any],
        finish_reason: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """`response`, or a copy without what an abort echo repeats; keeps the account."""
        choice = self._by_index.setdefault(choice_index(response), Choice())
        output_ids = response.get("output_ids") or ()
        text = response.get("text") or ""
        if finish_reason:
            new_ids = new_ids_in_echo(meta_info, finish_reason, output_ids, choice.delivered)
            if new_ids is not None:
                response = {**response, "output_ids": output_ids[:new_ids]}
                if text:
                    response["text"] = new_text_in_echo(text, new_ids, choice.text_length)
        choice.delivered += len(output_ids)
        choice.text_length += len(text)
        return response

    def observe(self, chunk: dict[str, Any]) -> None:
        self._track(meta_info_of(chunk["engine_data"]["sglang_response"]))


def _with_engine_data(chunk: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**chunk, "engine_data": {**chunk["engine_data"], **fields}}
