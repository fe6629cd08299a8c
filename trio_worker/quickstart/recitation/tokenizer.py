# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A byte-level tokenizer without merges: token ids 0 to 255 are the bytes, the rest are marks.

Without merges, text cut at any character gives the same tokens as the uncut text up to there, so
a completion that starts from any part of the passage continues it.
"""

from __future__ import annotations

from typing import Any, Final

SYSTEM: Final = 256
USER: Final = 257
ASSISTANT: Final = 258
END: Final = 259
MARKS: Final = {
    "<|system|>": SYSTEM,
    "<|user|>": USER,
    "<|assistant|>": ASSISTANT,
    "<|end|>": END,
}
VOCABULARY_SIZE: Final = 264
"""Rounded up to a multiple of eight; the ids from 260 on are never used."""

CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def encode(text: str) -> list[int]:
    """Token ids of ``text`` without marks: its UTF-8 bytes."""
    return list(text.encode())


def chat_prompt(*turns: tuple[int, str]) -> list[int]:
    """Token ids of a conversation of (mark, text) turns, as the chat template renders it."""
    ids: list[int] = []
    for mark, text in turns:
        ids += [mark, *encode(text), END]
    return [*ids, ASSISTANT]


def tokenizer_json() -> str:
    """The content of tokenizer.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in _byte_alphabet().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # The ids follow from the order: the first mark added gets 256.
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in MARKS]
    )
    return str(tokenizer.to_str(pretty=True))


def tokenizer_config() -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order.

    Printable Latin-1 bytes stand for themselves; the others take the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    stand_ins = {byte: 256 + rank for rank, byte in enumerate(others)}
    return {byte: chr(stand_ins.get(byte, byte)) for byte in range(256)}
