# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Which token stands at a position.

The token at absolute position p (prompt included, counted from 0) is the letter number
``(first prompt id + p) mod 26``. It depends on nothing that a continuation changes: a request that
is resumed as "prompt plus k generated tokens" has the same first id and goes on at position
len(prompt) + k, so the text goes on exactly, however it was cut into chunks. Prompts with another
first id or another length start at another letter, so crossed streams show.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Where a byte-level BPE vocabulary with three special tokens in front has its 'a'.
_USUAL_A = 67


def default_alphabet(vocab_size: int) -> tuple[int, ...]:
    """The ids used when no tokenizer says which ids are letters; at most 26, all < vocab_size."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
    if vocab_size >= _USUAL_A + len(LETTERS):
        return tuple(range(_USUAL_A, _USUAL_A + len(LETTERS)))
    return tuple(range(max(0, vocab_size - len(LETTERS)), vocab_size))


def letter_at(prompt_ids: Sequence[int], position: int, size: int = len(LETTERS)) -> int:
    """Index into the alphabet of the token at an absolute position."""
    return ((prompt_ids[0] if len(prompt_ids) else 0) + position) % size


def token_at(
    prompt_ids: Sequence[int],
    position: int,
    vocab_size: int,
    alphabet: Sequence[int] | None = None,
) -> int:
    """The token id at an absolute position of a request.

    alphabet: the ids of the letters in the model's tokenizer (see ``alphabet.find_alphabet``);
    ``default_alphabet(vocab_size)`` if None.
    """
    ids = default_alphabet(vocab_size) if alphabet is None else alphabet
    return ids[letter_at(prompt_ids, position, len(ids))]


def text_at(prompt_ids: Sequence[int], start: int, count: int) -> str:
    """The text of ``count`` tokens from absolute position ``start``, one letter a token."""
    first = letter_at(prompt_ids, start)
    return "".join(LETTERS[(first + k) % len(LETTERS)] for k in range(count))


def chunk_table(alphabet: Sequence[int], tokens_per_step: int) -> list[array[int]]:
    """For each letter, the chunk of ``tokens_per_step`` ids that starts with it.

    Chunks are shared between messages and never changed by their readers.
    """
    size = len(alphabet)
    return [
        array("q", [alphabet[(first + k) % size] for k in range(tokens_per_step)])
        for first in range(size)
    ]
