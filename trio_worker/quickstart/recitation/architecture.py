# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The network before training: GPT-2's architecture with attention that looks back fixed distances.

What comes next in a passage follows from the last few tokens, wherever in the sequence they
stand. Learning to look back from each of thousands of absolute positions would take long and
leave gaps; so this part is set, not learned. Each position gets a code of rotations by angles
that no other distance brings into line, and each attention head turns the query's code back by
its own distance: it sees the token there and nothing else. Training fills in the rest, which
never sees a position. What the model says therefore depends on its last REACH + 1 tokens only,
and a prompt's length, a prefill in pieces or a continuation from any token can't change it.

Imports torch and transformers, which take seconds: only the builder imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from trio_worker.quickstart.recitation import tokenizer

POSITIONS: Final = 4096
HEAD_WIDTH: Final = 32
LOOK_BACK: Final = ((1, 2, 3, 4, 5, 6), (4, 8, 12, 16, 20, 24))
"""Distances of the heads, layer by layer: together the model sees REACH tokens back."""
REACH: Final = sum(max(layer) for layer in LOOK_BACK)
WIDTH: Final = HEAD_WIDTH * len(LOOK_BACK[0])
INNER_WIDTH: Final = 384

# The residual stream: the first dimensions hold the position's code and its negative (so that
# layer norm, which takes the mean away, leaves their difference whole), the rest is learned.
ANGLES: Final = HEAD_WIDTH // 2
PLACE: Final = slice(0, 4 * ANGLES)
LEARNED: Final = slice(4 * ANGLES, WIDTH)
LEARNED_WIDTH: Final = WIDTH - 4 * ANGLES
TOKEN_SCALE: Final = 0.25

SHARPNESS: Final = (60.0, 6000.0)
"""Attention logit of the wanted distance, by layer. The second is higher because what the first
layer adds to the residual stream shrinks the share of the position's code."""


def new_model(generator: torch.Generator) -> Any:
    """A GPT2LMHeadModel in float32 whose attention looks back; the rest is random."""
    model = GPT2LMHeadModel(config())
    core = model.transformer
    angles = _position_angles(generator)
    # Layer norm divides by this: the position's code is ±cos, ±sin of each angle.
    spread = math.sqrt(2 * ANGLES * (1 + TOKEN_SCALE**2) / WIDTH)

    with torch.no_grad():
        core.wpe.weight.zero_()
        code = _rotations(torch.arange(POSITIONS, dtype=torch.float64), angles)
        core.wpe.weight[:, PLACE] = torch.cat([code, -code], dim=1).float()

        tokens = torch.randn(tokenizer.VOCABULARY_SIZE, LEARNED_WIDTH, generator=generator)
        tokens -= tokens.mean(dim=1, keepdim=True)
        tokens *= TOKEN_SCALE * math.sqrt(2 * ANGLES) / tokens.norm(dim=1, keepdim=True)
        core.wte.weight.zero_()
        core.wte.weight[:, LEARNED] = tokens

        def fill(weight: Any, scale: float) -> None:
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)

        read = spread / TOKEN_SCALE / math.sqrt(LEARNED_WIDTH)
        for block, distances, sharpness in zip(core.h, LOOK_BACK, SHARPNESS, strict=True):
            attend, mix = block.attn.c_attn.weight, block.attn.c_proj.weight
            widen, narrow = block.mlp.c_fc.weight, block.mlp.c_proj.weight
            for weight in (attend, mix, widen, narrow):
                weight.zero_()
            _set_distances(attend, distances, angles, sharpness, spread)
            fill(attend[LEARNED, 2 * WIDTH :], read)
            fill(mix[:, LEARNED], TOKEN_SCALE / math.sqrt(WIDTH))
            fill(widen[LEARNED], 1.4 * read)
            fill(narrow[:, LEARNED], 0.5 * TOKEN_SCALE / math.sqrt(INNER_WIDTH))
    return model


def config() -> Any:
    """The model's configuration, as saved in config.json."""
    return GPT2Config(
        vocab_size=tokenizer.VOCABULARY_SIZE,
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=len(LOOK_BACK),
        n_head=len(LOOK_BACK[0]),
        n_inner=INNER_WIDTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.END,
        eos_token_id=tokenizer.END,
    )


def trainable_parameters(model: Any) -> list[Any]:
    """The parameters to train; gradients of what is set, not learned, are held at zero."""
    core = model.transformer
    core.wpe.weight.requires_grad_(False)
    core.wte.weight.register_hook(_only((..., LEARNED)))
    for block in core.h:
        for parameter in block.ln_1.parameters():
            parameter.requires_grad_(False)
        block.attn.c_attn.weight.register_hook(_only((LEARNED, slice(2 * WIDTH, None))))
        block.attn.c_attn.bias.register_hook(_only((slice(2 * WIDTH, None),)))
        block.mlp.c_fc.weight.register_hook(_only((LEARNED,)))
        for layer in (block.attn.c_proj, block.mlp.c_proj):
            layer.weight.register_hook(_only((..., LEARNED)))
            layer.bias.register_hook(_only((LEARNED,)))
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _only(kept: tuple[Any, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A gradient hook that keeps the part ``kept`` and zeroes the rest."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(gradient)
        result[kept] = gradient[kept]
        return result

    return hook


def _position_angles(generator: torch.Generator) -> torch.Tensor:
    """Angles per step, chosen so that no distance up to POSITIONS looks like distance 0."""
    distances = torch.arange(1, POSITIONS, dtype=torch.float64)

    def likeness(angles: torch.Tensor) -> float:
        return float(torch.cos(distances[:, None] * angles).mean(dim=1).max())

    candidates = [
        torch.rand(ANGLES, generator=generator, dtype=torch.float64) * math.pi for _ in range(100)
    ]
    return min(candidates, key=likeness)


def _rotations(places: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Shape (places, HEAD_WIDTH): cosines, then sines."""
    turned = places[:, None] * angles
    return torch.cat([turned.cos(), turned.sin()], dim=1)


def _set_distances(
    attend: Any,
    distances: tuple[int, ...],
    angles: torch.Tensor,
    sharpness: float,
    spread: float,
) -> None:
    """Write the query and key weights of one layer: head h attends to distances[h] tokens back."""
    half = torch.eye(HEAD_WIDTH, dtype=torch.float64) / 2
    undouble = torch.cat([half, -half])
    # Attention divides query times key by sqrt(HEAD_WIDTH); a code times itself is ANGLES.
    scale = spread * math.sqrt(sharpness / ANGLES * math.sqrt(HEAD_WIDTH))
    for head, distance in enumerate(distances):
        cosine, sine = torch.diag((angles * distance).cos()), torch.diag((angles * distance).sin())
        turn_back = torch.cat([torch.cat([cosine, -sine], dim=1), torch.cat([sine, cosine], dim=1)])
        query = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
        key = slice(WIDTH + query.start, WIDTH + query.stop)
        attend[PLACE, query] = (scale * undouble @ turn_back).float()
        attend[PLACE, key] = (scale * undouble).float()
