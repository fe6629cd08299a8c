# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A tiny random Qwen2-VL that SGLang runs without a GPU.

Without one, SGLang's ordinary rotary layers want a kernel of vLLM's. The one for long contexts
(`longrope`) is plain PyTorch, and with factors of 1 it computes the same, but for pictures: their
patches have one position instead of three.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CONTEXT = 2048
"""Tokens of a question and its answer."""

_END, _VISION, _VISION_END, _IMAGE, _VIDEO = (
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

_TEMPLATE = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    f"{{% else %}}{_VISION}{_IMAGE}{_VISION_END}{{% endif %}}"
    "{% endfor %}{% endif %}{% endfor %}\n"
)

_HEAD = 32
"""Width of an attention head."""


def write_viewer(folder: Path) -> Path:
    """Neither flavour. A Qwen2-VL, for an encode worker and a multimodal worker.

    Imports transformers, which takes a while.
    """
    import torch
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    ids = _write_tokenizer(folder)
    torch.manual_seed(0)
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": 128,
            "hidden_size": 2 * _HEAD,
            "intermediate_size": 2 * _HEAD,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.5,  # with less, all answers are alike
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [4, 6, 6],
            },
            "bos_token_id": ids[_END],
            "eos_token_id": ids[_END],
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 2 * _HEAD,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "in_chans": 3,  # SGLang's name for it
            "initializer_range": 0.5,
        },
        image_token_id=ids[_IMAGE],
        video_token_id=ids[_VIDEO],
        vision_start_token_id=ids[_VISION],
        vision_end_token_id=ids[_VISION_END],
        tie_word_embeddings=False,
    )
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    settings["text_config"]["rope_parameters"] = _rope()
    path.write_text(json.dumps(settings))
    pixels = {"min_pixels": 56 * 56, "max_pixels": 4 * 56 * 56}
    Qwen2VLImageProcessor(**pixels).save_pretrained(folder)
    Qwen2VLVideoProcessor(**pixels).save_pretrained(folder)
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    settings["processor_class"] = "Qwen2VLProcessor"
    path.write_text(json.dumps(settings))
    return folder


def _rope() -> dict[str, Any]:
    ones = [1.0] * (_HEAD // 2)
    return {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "factor": 1.0,
        "short_factor": ones,
        "long_factor": ones,
        "original_max_position_embeddings": CONTEXT,
    }


def _write_tokenizer(folder: Path) -> dict[str, int]:
    """A token is a letter. Returns the ids of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(32, 127)]
    vocabulary = {word: i for i, word in enumerate(["<unk>", *letters, "\n"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = (_END, _VISION, _VISION_END, _IMAGE, _VIDEO)
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": _END,
        "pad_token": _END,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return {word: tokenizer.token_to_id(word) for word in special}
