# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The multimodal roles (R5-R7), which talk to each other in JSON texts."""

import json
from collections.abc import Callable
from typing import Any

from dynamo.common.utils.engine_response import normalize_finish_reason
from dynamo.sglang.request_handlers.multimodal.worker_handler import ErrorResponseBuilder

from trio_worker.responses.echo import new_ids_in_echo, new_text_in_echo
from trio_worker.responses.finish import raise_for_abort
from trio_worker.responses.prefill import PrefillResponses
from trio_worker.responses.state import Choice, Responses, choice_index, meta_info_of


def error_text(error: Exception, **fields: Any) -> str:
    """An error as the last response of a stream, in the form that an encode worker passes on."""
    text: str = ErrorResponseBuilder.build_error_response(error, fields)
    return text


class MultimodalResponses(Responses):
    """Equal to `StreamProcessor.process_sglang_stream`, but for aborts.

    A response is the JSON text of ``{"token_ids", "index", "text", "finished"}`` and, where
    `finished`, ``finish_reason``.

    The incumbent passes every abort on as a normal end: a stream that a shutdown cuts would not
    migrate (defect B19), and a request that SGLang refuses would end without saying why. Here
    rules 39 and 89 hold, and the abort echo repeats nothing (rule 119).

    Args:
        notify_first_token: called once, before the first response.
    """

    __slots__ = ("_by_index",)

    def __init__(
        self, *, choices: int = 1, notify_first_token: Callable[[], None] | None = None
    ) -> None:
        super().__init__(choices=choices, notify_first_token=notify_first_token)
        self._by_index: dict[int, Choice] = {}

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> Any:
        meta_info = meta_info_of(chunk)
        self._track(meta_info)
        output_ids = chunk.get("output_ids", [])
        finish_reason = meta_info.get("finish_reason")
        if not output_ids and not finish_reason:
            return None
        index = choice_index(chunk)
        text = chunk.get("text", "")
        choice = self._by_index.setdefault(index, Choice())
        if finish_reason:
            raise_for_abort(finish_reason, shutting_down=shutting_down)
            new_ids = new_ids_in_echo(meta_info, finish_reason, output_ids, choice.delivered)
            if new_ids is not None:
                output_ids = output_ids[:new_ids]
                text = new_text_in_echo(text, new_ids, choice.text_length) if text else text
        choice.delivered += len(output_ids)
        choice.text_length += len(text)
        if self._notify_first_token is not None:
            self._first_token()
        response = {"token_ids": output_ids, "index": index, "text": text, "finished": False}
        if finish_reason:
            response["finish_reason"] = normalize_finish_reason(finish_reason.get("type", "stop"))
            response["finished"] = True
            self._finished.add(index)
        return json.dumps(response)


class MultimodalPrefillResponses(PrefillResponses):
    """As for any prefill, results are consumed and not sent.

    Args:
        notify_first_token: called once, with the first result.
    """

    __slots__ = ("answered",)

    def __init__(self, notify_first_token: Callable[[], None]) -> None:
        super().__init__()
        self._notify_first_token = notify_first_token
        self.answered = False
        """Whether the engine has said anything."""

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> None:
        self._note_answer()
        super().convert(chunk, shutting_down=shutting_down)

    def observe(self, chunk: dict[str, Any]) -> None:
        self._note_answer()
        super().observe(chunk)

    def _note_answer(self) -> None:
        if not self.answered:
            self.answered = True
            self._first_token()


class ForwardedResponses(Responses):
    """What a downstream worker answers, as `MultimodalEncodeWorkerHandler.generate` passes it on.

    Taken out are the downstream worker's mark of a last response, and an empty text, which the
    frontend would take for the text. No engine ids are known here: a downstream request ends with
    its context.
    """

    __slots__ = ()

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> dict[str, Any]:
        response = dict(chunk)
        response.pop("finished", None)
        if not response.get("text"):
            response.pop("text", None)
        if response.get("finish_reason"):
            self._finished.add(choice_index(response))
        return response

    def observe(self, chunk: dict[str, Any]) -> None:
        pass


_MERGEABLE = frozenset(("token_ids", "index", "text", "finished"))


def merge_forwarded(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Downstream responses that wait for a reader: neighbours of one choice become one."""
    merged: list[dict[str, Any]] = []
    for chunk in chunks:
        last = merged[-1] if merged else None
        if (
            last is not None
            and choice_index(last) == choice_index(chunk)
            and last.keys() == chunk.keys()
            and chunk.keys() <= _MERGEABLE
            and not chunk.get("finished")
        ):
            merged[-1] = last | {
                key: last[key] + chunk[key] for key in ("token_ids", "text") if key in chunk
            }
        else:
            merged.append(chunk)
    return merged
