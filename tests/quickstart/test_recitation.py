# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from trio_worker.quickstart.recitation import PASSAGE, cache, tokenizer
from trio_worker.quickstart.recitation.tokenizer import ASSISTANT, SYSTEM, USER, chat_prompt


def test_passage_is_long_plain_and_its_own() -> None:
    assert PASSAGE.isascii()
    assert len(tokenizer.encode(PASSAGE)) >= 1_000
    assert PASSAGE.strip() == PASSAGE


def test_tokenizer_gives_bytes_and_marks() -> None:
    made = Tokenizer.from_str(tokenizer.tokenizer_json())
    every_kind = PASSAGE + "\x00\x7f é 川 🛶\r\n"
    ids = made.encode(every_kind).ids
    assert ids == tokenizer.encode(every_kind)
    assert made.decode(ids) == every_kind
    marks = "".join(tokenizer.MARKS)
    assert made.encode(marks).ids == list(tokenizer.MARKS.values())
    assert made.decode(made.encode(marks).ids) == ""


def test_text_cut_anywhere_gives_the_same_tokens_up_to_there() -> None:
    made = Tokenizer.from_str(tokenizer.tokenizer_json())
    whole = made.encode(PASSAGE).ids
    for cut in range(len(PASSAGE)):
        assert made.encode(PASSAGE[:cut]).ids == whole[:cut]


def test_chat_template_renders_what_the_model_was_trained_on() -> None:
    messages = [
        {"role": "system", "content": "Be true."},
        {"role": "user", "content": "Recite."},
        {"role": "assistant", "content": "The"},
        {"role": "user", "content": "Go on."},
    ]
    rendered, _ = render_jinja_template(
        conversations=[messages],
        chat_template=tokenizer.CHAT_TEMPLATE,
        add_generation_prompt=True,
    )
    made = Tokenizer.from_str(tokenizer.tokenizer_json())
    expected = chat_prompt(
        (SYSTEM, "Be true."), (USER, "Recite."), (ASSISTANT, "The"), (USER, "Go on.")
    )
    assert made.encode(rendered[0]).ids == expected


def test_built_model_is_whole(recitation_model: Path) -> None:
    assert cache.is_intact(recitation_model)
    config = json.loads((recitation_model / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["dtype"] == "bfloat16"
    assert config["n_positions"] >= 2 * len(PASSAGE)
    generation = json.loads((recitation_model / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.END
