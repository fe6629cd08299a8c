# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""A model folder without weights: the stand-in needs a tokenizer and a configuration only."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 512
CONTEXT = 2048
SPECIAL = ("<pad>", "<s>", "</s>")


def write_tiny_model(folder: Path, context: int = CONTEXT) -> Path:
    """Byte-level tokenizer (one token a byte, letters at 67 and up), GPT-2 configuration."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL[0],
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
            "{% endfor %}assistant:",
        },
        "config.json": {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": VOCAB_SIZE,
            "n_positions": context,
            "n_embd": 64,
            "n_layer": 1,
            "n_head": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
