# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A tiny random BERT with a tokenizer, for an embedding worker."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

HIDDEN = 32
"""Length of an embedding."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_WORDS = ("a", "the", "cat", "dog", "fish", "in", "on", "mat", "sea")


def write_encoder(folder: Path) -> Path:
    """Neither flavour. Write the model to `folder`; its weights are the same every time.

    Imports transformers, which takes a while.
    """
    import torch
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: i for i, word in enumerate([*_SPECIAL, *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.5,  # with less, all texts are alike
        position_embedding_type="absolute",  # SGLang asks for it by name
    )
    BertModel(config).save_pretrained(folder)
    return folder
