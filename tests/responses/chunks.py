# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""SGLang chunks for tests: hand-made pieces, and plausible streams from a seed.

What a chunk looks like is `TokenizerManager._handle_batch_output` of SGLang 0.5.21 with
incremental streaming: ids, text and per-token metadata are the new part only; counts are totals.
"""

import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from dynamo.sglang.request_handlers.llm.decode_handler import _MAX_ABORT_MESSAGE_LENGTH

from tests.responses.oracle import Chunk, Scenario

RID = "5ce09c2a7b3d4f0d9f9a3e0f6a1b2c3d"

ERROR_ABORTS: dict[str, dict[str, Any]] = {
    "bad request": {"message": "bad grammar", "status_code": 400, "err_type": "BadRequestError"},
    "bad request enum": {"message": "no", "status_code": HTTPStatus.BAD_REQUEST},
    "unprocessable": {"message": "no", "status_code": 422, "err_type": "Unprocessable"},
    "internal": {"message": "cuda", "status_code": 500, "err_type": "InternalServerError"},
    "unavailable": {"message": "queue full", "status_code": HTTPStatus.SERVICE_UNAVAILABLE},
    "status None": {"message": "odd", "status_code": None, "err_type": "Odd"},
    "status missing": {"message": "odd", "err_type": "Odd"},
    "status string": {"message": "odd", "status_code": "400"},
    "status bool": {"message": "odd", "status_code": True},
    "status float": {"message": "odd", "status_code": 400.0},
    "status ok": {"message": "odd", "status_code": 200},
    "status too high": {"message": "odd", "status_code": 600},
    "no message": {"status_code": 400},
    "message None": {"message": None, "status_code": 503},
    "message empty": {"message": "", "status_code": 400},
    "message odd": {"message": ["a", "b"], "status_code": 500},
    "message longest": {"message": "m" * _MAX_ABORT_MESSAGE_LENGTH, "status_code": 400},
    "message too long": {"message": "é" * (_MAX_ABORT_MESSAGE_LENGTH + 9), "status_code": 400},
    "message too long, 500": {"message": "x" * 20_000, "status_code": 500},
}

PLAIN_ABORTS: dict[str, dict[str, Any]] = {
    "bare": {},
    "queue": {"message": "Abort in waiting queue"},
    "nulls": {"message": "Aborted", "status_code": None, "err_type": None},
}

STOPS: dict[str, tuple[Any, set[int] | None]] = {
    "none": (None, None),
    "string": ("###", None),
    "empty string": ("", {1}),
    "string with hidden ids": ("###", set()),
    "id": (32, None),
    "asked id": (32, {32, 34}),
    "hidden id": (2, {32}),
    "id zero": (0, {0}),
    "id list": ([32, 34], None),
    "asked id list": ([32, 34], {32, 34}),
    "partly hidden id list": ([32, 2], {32}),
    "empty list": ([], {32}),
    "mixed list": ([32, "x"], None),
    "list with bool": ([True], None),
    "bool": (True, None),
    "float": (1.5, None),
}


def chunk(
    ids: list[int] | None = None,
    text: str | None = None,
    *,
    finish: dict[str, Any] | None = None,
    index: int | None = None,
    rid: str = RID,
    total: int | None = None,
    prompt: int | None = 7,
    cached: int | None = 3,
    meta: dict[str, Any] | None = None,
    **fields: Any,
) -> Chunk:
    """One chunk; `total` is `completion_tokens`, None leaves a field out."""
    ids = [] if ids is None else ids
    meta_info: dict[str, Any] = {"id": rid, "finish_reason": finish}
    for key, value in (
        ("prompt_tokens", prompt),
        ("completion_tokens", len(ids) if total is None else total),
        ("cached_tokens", cached),
    ):
        if value is not None:
            meta_info[key] = value
    meta_info.update({"weight_version": "default", "num_retractions": 0, **(meta or {})})
    made: Chunk = {"output_ids": ids, "meta_info": meta_info, **fields}
    if text is not None:
        made["text"] = text
    if index is not None:
        made["index"] = index
    return made


def logprobs(ids: list[int], *, top: int = 0) -> dict[str, Any]:
    """`meta_info` entries for these ids, as `detokenize_logprob_tokens` makes them."""
    made: dict[str, Any] = {
        "output_token_logprobs": [(-0.25 * (i % 7) - 0.5, i, None) for i in ids],
    }
    if top:
        made["output_top_logprobs"] = [
            [(-0.5 - rank, i + rank, f"t{i + rank}") for rank in range(top)] for i in ids
        ]
    return made


def without_echo(echo: Chunk, *, uploads: bool = False) -> Chunk:
    """What the last chunk of a queue abort should have been: nothing new in it.

    Uploaded metadata stays as SGLang made it: it is not streamed, so nothing in it is told twice.
    """
    cleaned = {**echo, "output_ids": [], "meta_info": dict(echo["meta_info"])}
    if "text" in echo:
        cleaned["text"] = ""
    if not uploads:
        for key in ("output_token_logprobs", "output_top_logprobs"):
            cleaned["meta_info"].pop(key, None)
    return cleaned


@dataclass
class RandomStream:
    """`fed` goes to us; `clean`, its abort echoes replaced, to the incumbent (rule 119)."""

    fed: Scenario
    clean: Scenario


def random_stream(seed: int, mode: str, *, choices: int | None = None) -> RandomStream:
    """A plausible stream for `mode`, the same for the same seed."""
    rng = random.Random(f"{mode}-{seed}")
    if choices is None:
        choices = rng.choice((1, 1, 1, 2, 3))
    uploads = mode != "native" and rng.random() < 0.15
    wants_logprobs = rng.random() < 0.4
    streams = [
        _random_choice(rng, i, choices, mode=mode, wants_logprobs=wants_logprobs, uploads=uploads)
        for i in range(choices)
    ]
    fed: list[Chunk] = []
    clean: list[Chunk] = []
    while any(streams):
        ours_next, clean_next = rng.choice([stream for stream in streams if stream]).pop(0)
        fed.append(ours_next)
        clean.append(clean_next)

    def at_some_chunk(probability: float) -> int | None:
        return rng.randrange(len(fed)) if fed and rng.random() < probability else None

    common: dict[str, Any] = {
        "mode": mode,
        "choices": choices,
        "uploads": uploads,
        "shutdown_in_upload": rng.random() < 0.2,
        "upload_error": OSError("bucket gone") if uploads and rng.random() < 0.2 else None,
        "wants_logprobs": wants_logprobs,
        "ordered": rng.random() < 0.6,
        "stop_at": at_some_chunk(0.25),
        # In native mode an abort in a shutdown differs by design: rule 39, tested apart.
        "shutdown_at": at_some_chunk(0.25) if mode != "native" else None,
        "return_tokens_as_token_ids": rng.random() < 0.5,
        "user_stop_token_ids": rng.choice((None, set(), {32}, {32, 34})),
        "report_kv_cache_hit": rng.random() < 0.7,
        "disaggregated_decode": rng.random() < 0.2,
        "request": rng.choice(
            (
                None,
                {},
                {"nvext": {"extra_fields": ["stop_reason"]}},
                {"extra_args": {"nvext": {"extra_fields": ["worker_id", "stop_reason"]}}},
                {"extra_args": None, "nvext": {"extra_fields": ["worker_id"]}},
            )
        ),
        "internal_request_id": RID if rng.random() < 0.9 else None,
        "response_request_id": rng.choice((None, "public", ["public-a", "public-b"])),
    }
    return RandomStream(Scenario(fed, **common), Scenario(clean, **common))


def _random_choice(
    rng: random.Random,
    number: int,
    choices: int,
    *,
    mode: str,
    wants_logprobs: bool,
    uploads: bool,
) -> list[tuple[Chunk, Chunk]]:
    with_text = mode == "text" or rng.random() < 0.3
    if choices == 1:
        rid, index = RID, rng.choice((None, None, None, 0))
    else:
        rid = rng.choice((f"{RID}_{number}", f"{rng.getrandbits(128):032x}"))
        index = number
    top = rng.choice((0, 2, 5))
    prompt = rng.choice((7, 7, 7, 0, None))
    cached = rng.choice((0, 3, None))
    legacy = rng.random() < 0.1
    retractions = total = 0
    all_ids: list[int] = []
    all_text = ""
    made: list[tuple[Chunk, Chunk]] = []

    def next_chunk(ids: list[int], text: str, finish: dict[str, Any] | None) -> Chunk:
        meta: dict[str, Any] = {"num_retractions": retractions, "reasoning_tokens": 0}
        if wants_logprobs:
            meta.update(logprobs(ids, top=top))
            meta["input_token_logprobs"] = [(None, 1, None), (-0.5, 4, "a"), (-2, 5, None)]
            if top and rng.random() < 0.5:
                meta["input_top_logprobs"] = [None, [(-0.25, 9, "b"), (-0.5, 4, "a")]]
        if rng.random() < 0.05:
            meta["routed_experts"] = rng.choice(("AAEC", None, ""))
        if finish:
            meta["e2e_latency"] = 0.25
        fields: dict[str, Any] = {}
        if mode != "native" and rng.random() < 0.05:
            fields["engine_data"] = rng.choice(({"native": {"k": 1}}, {}, None))
        made_chunk = chunk(
            ids,
            text if with_text else None,
            finish=finish,
            index=index,
            rid=rid,
            total=total,
            prompt=prompt,
            cached=cached,
            meta=meta,
            **fields,
        )
        if legacy:
            for key in rng.sample(("prompt_tokens", "completion_tokens", "id"), rng.randrange(3)):
                made_chunk["meta_info"].pop(key, None)
            if rng.random() < 0.3 and not ids:
                del made_chunk["output_ids"]
        return made_chunk

    def some_tokens(at_least: int) -> tuple[list[int], str]:
        ids = [rng.randrange(1, 50_000) for _ in range(rng.choice((at_least, 1, 1, 1, 2, 4)))]
        return ids, rng.choice(("", "a", " word", "é", "日本")) if ids else ""

    for _ in range(rng.randrange(9)):
        ids, text = some_tokens(0)
        total += len(ids)
        all_ids += ids
        all_text += text
        if rng.random() < 0.05:
            retractions += 1
            cached = rng.choice((0, 5, 9))
        ordinary = next_chunk(ids, text, None)
        made.append((ordinary, ordinary))

    end = rng.choice(("stop", "stop", "length", "abort", "error", "echo", "cut"))
    if end == "cut":
        return made
    # Legacy chunks have no exact counts to tell an echo by, and SGLang makes none for native here.
    if end == "echo" and not legacy and mode != "native":
        finish: dict[str, Any] = {"type": "abort", **rng.choice(list(PLAIN_ABORTS.values()))}
        echo = chunk(all_ids[-1:], all_text, finish=finish, index=index, rid=rid, total=total)
        for key in ("prompt_tokens", "cached_tokens"):
            del echo["meta_info"][key]
        if wants_logprobs:
            echo["meta_info"].update(logprobs(all_ids, top=top))
        made.append((echo, without_echo(echo, uploads=uploads)))
        return made
    finish = {"type": end}
    if end == "stop":
        finish["matched"] = rng.choice(list(STOPS.values()))[0]
    elif end == "length":
        finish["length"] = 16
    elif end == "abort":
        finish.update(rng.choice(list(PLAIN_ABORTS.values())))
    else:
        finish = {"type": "abort", **rng.choice(list(ERROR_ABORTS.values()))}
    ids, text = some_tokens(0)
    total += len(ids)
    final = next_chunk(ids, text, finish)
    made.append((final, final))
    return made
