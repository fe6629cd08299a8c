# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Requests that can't be served, and what the incumbent answered to them.

`python -m tests.e2e.bad_input` asks `python -m dynamo.sglang` on the real engine and prints its
answers, of which `RECORDED` is the short form (ai-dynamo 1.6.1, sglang 0.5.21).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from tests.e2e.backing import Recitation
from tests.e2e.served import Served, open_served
from trio_worker.quickstart.chat import Answer, get, post

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]

BAD: Mapping[str, tuple[str, dict[str, Any]]] = {
    "prompt longer than the context": (
        CHAT,
        {"messages": [{"role": "user", "content": "weir " * 2000}], "max_tokens": 5},
    ),
    "answer longer than the context": (CHAT, {"messages": HELLO, "max_tokens": 100_000}),
    "token id out of vocabulary": (
        CHAT,
        {"messages": HELLO, "max_tokens": 5, "nvext": {"token_data": [1, 2, 100_000]}},
    ),
    "token id out of vocabulary in a completion": (
        COMPLETIONS,
        {"prompt": [1, 2, 100_000], "max_tokens": 5},
    ),
    "negative token id": (COMPLETIONS, {"prompt": [1, -2], "max_tokens": 5}),
    "max_tokens is text": (CHAT, {"messages": HELLO, "max_tokens": "many"}),
    "max_tokens is zero": (CHAT, {"messages": HELLO, "max_tokens": 0}),
    "temperature is negative": (CHAT, {"messages": HELLO, "temperature": -1.0}),
    "top_p beyond 1": (CHAT, {"messages": HELLO, "top_p": 1.5}),
    "messages is text": (CHAT, {"messages": "Hello"}),
    "no messages": (CHAT, {"messages": []}),
    "unknown model or LoRA": (CHAT, {"model": "not-there", "messages": HELLO}),
    "n beyond 1 at temperature 0": (CHAT, {"messages": HELLO, "n": 3, "temperature": 0}),
    "too many top logprobs": (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 50}),
    "stop is a number": (CHAT, {"messages": HELLO, "stop": 7}),
    "unknown response format": (CHAT, {"messages": HELLO, "response_format": {"type": "poem"}}),
    # These pass the frontend's own checks, so that worker and engine have to refuse.
    "top_k of -7": (CHAT, {"messages": HELLO, "max_tokens": 5, "top_k": -7}),
    "min_tokens beyond max_tokens": (
        CHAT,
        {"messages": HELLO, "max_tokens": 5, "min_tokens": 50},
    ),
    "negative stop token id": (CHAT, {"messages": HELLO, "max_tokens": 5, "stop_token_ids": [-4]}),
    "schema without a grammar backend": (
        CHAT,
        {
            "messages": HELLO,
            "max_tokens": 5,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "any", "schema": {"type": "object"}},
            },
        },
    ),
    "broken regex": (CHAT, {"messages": HELLO, "max_tokens": 5, "guided_regex": "(["}),
    "bias of a token out of vocabulary": (
        CHAT,
        {"messages": HELLO, "max_tokens": 5, "logit_bias": {"100000": 1}},
    ),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no answer."""

    status: int
    kind: str
    """The body's `type`, the error class as HTTP tells it; "" for an answer."""


BAD_REQUEST = Refusal(400, "Bad Request")
NOT_FOUND = Refusal(404, "Not Found")
IN_THE_STREAM = Refusal(200, "invalid_request_error")
ANSWERED = Refusal(200, "")

RECORDED: Mapping[str, tuple[Refusal, Refusal]] = {
    **dict.fromkeys(BAD, (BAD_REQUEST, BAD_REQUEST)),
    "unknown model or LoRA": (NOT_FOUND, NOT_FOUND),
    # What the engine refuses, a streamed answer learns after its status.
    "min_tokens beyond max_tokens": (BAD_REQUEST, IN_THE_STREAM),
    "schema without a grammar backend": (BAD_REQUEST, IN_THE_STREAM),
    "broken regex": (BAD_REQUEST, IN_THE_STREAM),
    # Neither checks it: the engine ignores what it does not know.
    "bias of a token out of vocabulary": (ANSWERED, ANSWERED),
}
"""By name: not streamed, streamed. A stream's status comes before its error."""


async def ask(served: Served, name: str, *, stream: bool) -> tuple[Refusal, Answer]:
    """Trio. One of `BAD`."""
    path, payload = BAD[name]
    answer = await post(served.port, path, {"model": served.model, "stream": stream, **payload})
    return Refusal(answer.status, kind_of(answer)), answer


def kind_of(answer: Answer) -> str:
    """The error class in a body or an error event; pure."""
    if not answer.errors:
        return ""
    if isinstance(answer.body, dict):
        return str(answer.body.get("type", answer.body))
    if answer.body is not None:
        return "text"
    try:
        event = json.loads(answer.errors[0])
    except ValueError:
        return "event"
    return str(event.get("error", event).get("type", event))


async def _record(backing: Recitation) -> None:
    async with open_served(backing, module="dynamo.sglang", say=print) as served:
        for name in BAD:
            refusals = []
            for stream in (False, True):
                refusal, answer = await ask(served, name, stream=stream)
                refusals.append(refusal)
                print(name, stream, refusal, answer.errors, file=sys.stderr)
            print(f"    {name!r}: ({refusals[0]!r}, {refusals[1]!r}),", flush=True)
        print(await get(served.system_port, "/health"), file=sys.stderr)


if __name__ == "__main__":
    trio.run(_record, Recitation.make())
