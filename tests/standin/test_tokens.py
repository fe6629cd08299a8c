# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from trio_worker.standin.alphabet import find_alphabet
from trio_worker.standin.tokens import (
    LETTERS,
    chunk_table,
    default_alphabet,
    text_at,
    token_at,
)


@pytest.mark.parametrize("vocab_size", [1, 7, 30, 92, 93, 1024, 128_000])
def test_tokens_are_in_the_vocabulary(vocab_size: int) -> None:
    assert all(0 <= token_at([3, 4], p, vocab_size) < vocab_size for p in range(100))


@pytest.mark.parametrize("cut", [0, 1, 13, 40])
def test_a_continuation_goes_on_exactly(cut: int) -> None:
    prompt = [17, 2, 900]
    whole = [token_at(prompt, len(prompt) + k, 1024) for k in range(60)]
    longer = prompt + whole[:cut]
    resumed = [token_at(longer, len(longer) + k, 1024) for k in range(60 - cut)]
    assert whole[:cut] + resumed == whole


def test_text_is_the_alphabet_from_the_prompts_letter() -> None:
    assert text_at([0], 0, 28) == LETTERS + "ab"
    assert text_at([2, 9], 2, 3) == "efg"


def test_text_and_tokens_agree() -> None:
    alphabet = default_alphabet(1024)
    ids = [token_at([5, 6], 2 + k, 1024) for k in range(30)]
    assert "".join(LETTERS[alphabet.index(i)] for i in ids) == text_at([5, 6], 2, 30)


def test_other_prompts_start_elsewhere() -> None:
    assert token_at([1, 1], 2, 1024) != token_at([2, 1], 2, 1024)
    assert token_at([1, 1], 2, 1024) != token_at([1, 1, 1], 3, 1024)


def test_an_empty_prompt_has_tokens_too() -> None:
    assert token_at([], 0, 1024) == default_alphabet(1024)[0]


def test_chunks_begin_at_every_letter_and_wrap() -> None:
    table = chunk_table(range(10, 36), 3)
    assert [list(chunk) for chunk in (table[0], table[25])] == [[10, 11, 12], [35, 10, 11]]
    assert len(table) == 26


def test_a_vocabulary_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        default_alphabet(0)


@pytest.mark.parametrize("unigram", [False, True])
def test_letters_are_found_in_a_tokenizer(tmp_path: Path, unigram: bool) -> None:
    ids = {letter: 40 + i for i, letter in enumerate(LETTERS)}
    listed = [["x-filler", 0.0]] * 40 + [[letter, -1.0] for letter in LETTERS]
    model = {"model": {"vocab": listed if unigram else {"the": 3, **ids}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(model))
    assert find_alphabet(str(tmp_path)) == tuple(range(40, 66))


def test_no_alphabet_without_every_letter_or_without_a_file(tmp_path: Path) -> None:
    assert find_alphabet(str(tmp_path)) is None
    assert find_alphabet(None) is None
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 1}}}))
    assert find_alphabet(str(tmp_path)) is None
