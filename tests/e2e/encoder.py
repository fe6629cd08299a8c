# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A tiny random BERT with a tokenizer, for an embedding worker or a rerank worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

    config = BertConfig(**_write_tokenizer(folder))
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


def write_reranker(folder: Path) -> Path:
    """As `write_encoder`, with one score for a pair of texts at its end."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**_write_tokenizer(folder), num_labels=1)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path) -> dict[str, Any]:
    """Also: what the model's configuration has to say."""
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
    return {
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "initializer_range": 0.5,  # with less, all texts are alike
        "position_embedding_type": "absolute",  # SGLang asks for it by name
    }
