# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A tiny random BERT with a tokenizer, for an embedding worker."""

from __future__ import annotations

from pathlib import Path

HIDDEN = 32
"""Length of an embedding."""

_WORDS = ("a", "the", "cat", "dog", "fish", "in", "on", "mat", "sea")


def write_encoder(folder: Path) -> Path:
    """Neither flavour. Write the model to `folder`; its weights are the same every time.

    Imports transformers, which takes a while.
    """
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        position_embedding_type="absolute",  # SGLang asks for it by name
    )
    BertModel(config).save_pretrained(folder)
    return folder
