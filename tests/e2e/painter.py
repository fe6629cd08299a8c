# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Tiny random diffusion pipelines: ``python -m tests.e2e.painter pictures|films FOLDER``.

Stable Diffusion for an image worker, its text-to-video sister for a video worker. Run in a process
of its own: diffusers takes a while to import, and warns.
"""

from __future__ import annotations

import json
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_SPECIAL = ("<|startoftext|>", "<|padding|>", "<|endoftext|>")


def write_painter(folder: Path) -> Path:
    """Neither flavour; blocks. Write the model to `folder`; its weights are the same every time."""
    return _write("pictures", folder)


def write_filmer(folder: Path) -> Path:
    """As `write_painter`, of films."""
    return _write("films", folder)


def _write(what: str, folder: Path) -> Path:
    command = [sys.executable, "-m", __spec__.name, what, str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def _pictures(folder: Path) -> None:
    from diffusers import StableDiffusionPipeline, UNet2DConditionModel

    StableDiffusionPipeline(
        unet=UNet2DConditionModel(
            **_unet(),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        **_parts(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def _films(folder: Path) -> None:
    from diffusers import TextToVideoSDPipeline, UNet3DConditionModel

    TextToVideoSDPipeline(
        unet=UNet3DConditionModel(
            **_unet(),
            down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
            up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        ),
        **_parts(),
    ).save_pretrained(folder)


def _unet() -> dict[str, Any]:
    return {
        "sample_size": 32,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "cross_attention_dim": 32,
        "attention_head_dim": 8,
    }


def _parts() -> dict[str, Any]:
    """What the pipelines have in common."""
    from diffusers import AutoencoderKL, DDIMScheduler
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    words = [*_SPECIAL, *string.ascii_lowercase, *(f"{c}</w>" for c in string.ascii_lowercase)]
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary, merges = Path(scratch, "vocab.json"), Path(scratch, "merges.txt")
        vocabulary.write_text(json.dumps({word: i for i, word in enumerate(words)}))
        merges.write_text("#version: 0.2\n")
        tokenizer = CLIPTokenizer(str(vocabulary), str(merges))
    tokenizer.model_max_length = 77
    text = CLIPTextConfig(
        vocab_size=1000,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    return {
        "vae": AutoencoderKL(
            block_out_channels=(32, 64),
            norm_num_groups=8,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        "text_encoder": CLIPTextModel(text),
        "tokenizer": tokenizer,
        "scheduler": DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    }


if __name__ == "__main__":
    import torch

    torch.manual_seed(0)
    {"pictures": _pictures, "films": _films}[sys.argv[1]](Path(sys.argv[2]))
