# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""From SGLang's tokenized requests to requests of ours. Duck-typed: nothing here imports SGLang."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trio_worker.standin.faults import WORKER_SIDE, FaultChooser
from trio_worker.standin.request import Ending, Logprobs, Request, abort_reason, natural_ending
from trio_worker.standin.script import Fault, FaultKind, ScriptError, StandInScript
from trio_worker.standin.wire import embedding_of, relevance_of

# SGLANG_FORCE_STREAM_INTERVAL: how often SGLang lets a request that does not stream be heard of.
UNSTREAMED_INTERVAL = 50

_HEALTH_CHECK_PREFIX = "HEALTH_CHECK"  # sglang.srt.constants.HEALTH_CHECK_RID_PREFIX


@dataclass(frozen=True, slots=True)
class Model:
    """What the stand-in has to know about the model that it stands in for."""

    context_length: int
    vocab_size: int
    hidden_size: int
    alphabet: tuple[int, ...]
    eos_id: int | None = None
    tokenizer_file: str | None = None


class Intake:
    """Makes requests. capacity: KV tokens; prefill: one token each, as a prefill worker does."""

    def __init__(
        self, script: StandInScript, model: Model, *, prefill: bool, stream_interval: int
    ) -> None:
        self._script = script
        self._model = model
        self._prefill = prefill
        self._stream_interval = stream_interval
        self._tokenizer: Any = None
        self._chooser = FaultChooser(script.faults, script.seed, set(FaultKind) - WORKER_SIDE)
        # SGLang's TpModelWorker.get_worker_info.
        self.max_request_length = min(model.context_length - 1, script.capacity - 1)
        self.max_prompt_length = self.max_request_length - 5

    def generate(self, message: Any, time_stats: Any, refusal: str | None = None) -> Request:
        """A request for tokens. refusal: it ends at its first token, with this as a 400."""
        sampling = message.sampling_params
        prompt_ids = _prompt_ids(message)
        logprobs = None
        if message.return_logprob:
            start = message.logprob_start_len
            logprobs = Logprobs(message.top_logprobs_num, message.token_ids_logprob, start)
        faults, refusal = self._faults(message, prompt_ids, refusal)
        interval = sampling.stream_interval or self._stream_interval
        request = Request(
            rid=message.rid,
            prompt_ids=prompt_ids,
            ending=self._ending(sampling, prompt_ids),
            http_worker_ipc=message.http_worker_ipc,
            stream_interval=interval if message.stream else UNSTREAMED_INTERVAL,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            no_stop_trim=sampling.no_stop_trim,
            logprobs=logprobs,
            time_stats=time_stats,
            faults=faults,
        )
        if refusal is not None:
            # Scheduler's set_finish_with_abort: the request still runs through the queue.
            request.to_finish = abort_reason(refusal, 400, "BadRequestError")
        return request

    def embed(self, message: Any, time_stats: Any) -> Request:
        """A request for an embedding, or for a score if it is a cross-encoder's pair."""
        prompt_ids = _prompt_ids(message)
        dims = message.dimensions or self._script.dims or self._model.hidden_size
        embedding: list[float] | float
        if message.token_type_ids is not None:
            embedding = relevance_of(prompt_ids, message.token_type_ids)
        else:
            embedding = embedding_of(prompt_ids, dims)
        faults, refusal = self._faults(message, prompt_ids, None)
        request = Request(
            rid=message.rid,
            prompt_ids=prompt_ids,
            ending=Ending(0, {"type": "length", "length": 0}),
            http_worker_ipc=message.http_worker_ipc,
            is_embedding=True,
            embedding=embedding,
            time_stats=time_stats,
            faults=faults,
        )
        if refusal is not None:
            request.to_finish = abort_reason(refusal, 400, "BadRequestError")
        return request

    def _ending(self, sampling: Any, prompt_ids: Sequence[int]) -> Ending:
        ending = natural_ending(
            prompt_ids=prompt_ids,
            max_new_tokens=sampling.max_new_tokens,
            room=max(0, self.max_request_length - len(prompt_ids) - 1),
            alphabet=self._model.alphabet,
            min_new_tokens=sampling.min_new_tokens or 0,
            eos_every=self._script.eos_every,
            eos_id=self._model.eos_id,
            ignore_eos=bool(sampling.ignore_eos),
            stop_token_ids=sampling.stop_token_ids or (),
            stop_strings=_as_list(sampling.stop_strs),
        )
        if self._prefill and ending.length > 0:
            # process_disagg_prefill_inflight_queue: the first token, then FINISH_LENGTH(0).
            return Ending(1, {"type": "length", "length": 0})
        return ending

    def _faults(
        self, message: Any, prompt_ids: Sequence[int], refusal: str | None
    ) -> tuple[tuple[Fault, ...], str | None]:
        if message.rid.startswith(_HEALTH_CHECK_PREFIX):
            return (), refusal
        try:
            faults = self._chooser.choose(
                custom_params=message.sampling_params.custom_params,
                max_new_tokens=message.sampling_params.max_new_tokens,
                prompt=self._prompt_text(message, prompt_ids),
            )
        except ScriptError as error:
            return (), refusal or str(error)
        return faults, refusal

    def _prompt_text(self, message: Any, prompt_ids: Sequence[int]) -> Callable[[], str]:
        def text() -> str:
            if isinstance(message.input_text, str):
                return message.input_text
            if self._model.tokenizer_file is None:
                return ""
            if self._tokenizer is None:
                # It has no type hints. transformers, which has, takes seconds to import.
                from tokenizers import Tokenizer  # type: ignore[import-untyped,unused-ignore]

                self._tokenizer = Tokenizer.from_file(self._model.tokenizer_file)
            return str(self._tokenizer.decode(list(prompt_ids)))

        return text


def _prompt_ids(message: Any) -> array[int]:
    if message.input_ids is not None:
        return array("q", message.input_ids)
    embeds = getattr(message, "input_embeds", None)
    return array("q", [1]) * (len(embeds) if embeds is not None else 1)


def _as_list(text: str | Sequence[str] | None) -> list[str]:
    if not text:
        return []
    return [text] if isinstance(text, str) else list(text)
