# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What every mode keeps for a request: engine ids that still run, choices that have ended."""

from collections.abc import Callable
from typing import Any

from dynamo.llm.exceptions import EngineShutdown

from trio_worker.responses.finish import SHUTDOWN_MESSAGE

_UNSEEN: Any = object()
NO_META: dict[str, Any] = {}


class Choice:
    """One choice's account: what was delivered, and which usage the frontend already has."""

    __slots__ = ("cached_tokens", "delivered", "prompt_tokens", "text_length")

    def __init__(self) -> None:
        self.delivered = 0
        self.text_length = 0
        # Differs from every value, None included: the first chunk always reports usage.
        self.prompt_tokens: Any = _UNSEEN
        self.cached_tokens: Any = _UNSEEN


def choice_index(chunk: dict[str, Any]) -> int:
    """The chunk's choice; SGLang omits the index where there is only one."""
    index: int = chunk.get("index") or 0
    return index


def meta_info_of(chunk: dict[str, Any]) -> dict[str, Any]:
    """The chunk's metadata; read-only for callers, since it may be a shared empty dict."""
    meta_info: dict[str, Any] = chunk.get("meta_info", NO_META)
    return meta_info


class Responses:
    """Base of the converters: one instance per request, fed with its chunks in order.

    A chunk goes to exactly one of `convert` (something may be sent) and `observe` (the client is
    gone: consumed, not sent; rule 51).

    `unfinished_ids` holds the engine ids that were seen without a finish reason (rules 5, 64, 65).
    It belongs to the request task as well, which clears it when it has aborted them; an id that
    speaks again after that is back in the set.

    Args:
        choices: number of streams the engine will finish for this request: `n` (times the batch
            size in native mode), but 1 for beam search, which answers with one chunk.
        uploads: the request's metadata is uploaded and not sent (`MetadataUploader`).
        notify_first_token: called once, with the first chunk that has output, before it is sent;
            dropped after that.
    """

    __slots__ = (
        "_by_index",
        "_choices",
        "_finished",
        "_notify_first_token",
        "_uploads",
        "unfinished_ids",
    )

    def __init__(
        self,
        *,
        choices: int = 1,
        uploads: bool = False,
        notify_first_token: Callable[[], None] | None = None,
    ) -> None:
        self.unfinished_ids: set[str] = set()
        self._by_index: dict[int, Choice] = {}
        self._choices = choices
        self._finished: set[int] = set()
        self._uploads = uploads
        self._notify_first_token = notify_first_token

    @property
    def tokens(self) -> int:
        """Tokens in the responses so far, all choices together; 0 for modes that send none."""
        return sum(choice.delivered for choice in self._by_index.values())

    @property
    def all_finished(self) -> bool:
        """Whether every choice has had its final response: then the request ends normally, even
        during a shutdown (rules 40, 129)."""
        return len(self._finished) >= self._choices

    def convert(self, chunk: dict[str, Any], *, shutting_down: bool) -> dict[str, Any] | None:
        """The response for `chunk`, or None when there is nothing to send.

        Raises:
            EngineShutdown: the chunk is an abort and the worker is `shutting_down` (rule 39).
            InvalidArgument, HttpError: the engine refused the request or failed (rule 89).
        """
        raise NotImplementedError

    def observe(self, chunk: dict[str, Any]) -> None:
        """Account for a chunk that is consumed and not sent (rule 51)."""
        self._track(meta_info_of(chunk))

    def upload_due(self, chunk: dict[str, Any]) -> bool:
        """Whether `chunk[\"meta_info\"]` must be uploaded before the response to it is sent.

        If so: `convert(chunk)`, upload `(choice_index(chunk), chunk["meta_info"])`, then
        `uploaded(chunk)`, then send.
        """
        return self._uploads and bool(meta_info_of(chunk).get("finish_reason"))

    def uploaded(self, chunk: dict[str, Any], *, shutting_down: bool) -> None:
        """Free what was uploaded; the choice has ended.

        Raises:
            EngineShutdown: an abort, and the shutdown began during the upload (rule 39).
        """
        meta_info = chunk["meta_info"]
        aborted = meta_info["finish_reason"].get("type") == "abort"
        meta_info.clear()
        if aborted and shutting_down:
            raise EngineShutdown(SHUTDOWN_MESSAGE)
        self._finished.add(choice_index(chunk))

    def _track(self, meta_info: dict[str, Any]) -> None:
        engine_id = meta_info.get("id")
        if engine_id:
            if meta_info.get("finish_reason"):
                self.unfinished_ids.discard(engine_id)
            else:
                self.unfinished_ids.add(engine_id)

    def _first_token(self) -> None:
        notify, self._notify_first_token = self._notify_first_token, None
        if notify is not None:
            notify()
