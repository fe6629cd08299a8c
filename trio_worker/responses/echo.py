# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The abort echo: what SGLang repeats when a request is aborted while it waits in the queue.

A request that was retracted has output already. Aborted there, it gets its last chunk from
`TokenizerManager._handle_abort_req`: the last token once more, the *whole* text and, if asked for,
the logprobs of *all* tokens, although streaming is incremental. Outputs that were still pending are
merged in front of it by SGLang itself. The client must see each token once (rule 119).

`completion_tokens` is exact in this chunk and in every other one (`len` of the ids sent so far),
so it tells the repeated ids from the new ones.
"""

from typing import Any

_PER_TOKEN_LOGPROBS = ("output_token_logprobs", "output_top_logprobs")


def new_ids_in_echo(
    meta_info: dict[str, Any],
    finish_reason: dict[str, Any],
    output_ids: Any,
    delivered: int,
) -> int | None:
    """Number of leading `output_ids` that are new, or None when nothing is repeated.

    `delivered` is the number of ids of this choice in all earlier chunks.
    """
    if not output_ids or finish_reason.get("type") != "abort":
        return None
    completion_tokens = meta_info.get("completion_tokens")
    # Zero tokens and yet an id is not an echo, which has a token to repeat.
    if not completion_tokens:
        return None
    new = int(completion_tokens) - delivered
    return new if 0 <= new < len(output_ids) else None


def new_text_in_echo(text: str, new_ids: int, delivered_length: int) -> str:
    """The part of an echo's text that is new.

    `delivered_length` is the length of all earlier text of this choice, in characters. Merged with
    pending output the text is `new + delivered + new`, else just `delivered`.
    """
    if new_ids == 0:
        return ""
    return text[: max(0, len(text) - delivered_length) // 2]


def without_repeated_logprobs(meta_info: dict[str, Any], new_ids: int) -> dict[str, Any]:
    """A copy of `meta_info` whose output logprobs are those of the first `new_ids` tokens.

    The order in a merged chunk is new first, so the head is what belongs to the new ids.
    """
    trimmed = {key: meta_info[key][:new_ids] for key in _PER_TOKEN_LOGPROBS if meta_info.get(key)}
    return {**meta_info, **trimmed}
