# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Training: short windows of conversations that end with the passage.

The model sees only REACH tokens back, so windows a little longer than that teach it all there is.
Imports torch, which takes seconds: only the builder imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from trio_worker.quickstart.recitation import tokenizer
from trio_worker.quickstart.recitation.architecture import POSITIONS, REACH, trainable_parameters
from trio_worker.quickstart.recitation.passage import PASSAGE

WINDOW: Final = 96
WINDOWS_PER_STEP: Final = 24
STEPS_PER_ROUND: Final = 250
LEARNING_RATE: Final = 3e-3
MISPRINTS: Final = 0.01
"""Share of the tokens that are replaced at random at first, falling to none at the end of a round:
teaches to go on after a wrong token, then to be sure after right ones."""
UNGRADED: Final = -100

_PASSAGE_IDS: Final = tokenizer.encode(PASSAGE)
# After the end mark the passage starts again: a request that ignores the end gets a stream of
# any length that can be checked as well.
_CYCLE: Final = [*_PASSAGE_IDS, tokenizer.END]


def train_round(
    model: Any,
    generator: torch.Generator,
    progress: Callable[[int, float], None],
    *,
    learning_rate: float = LEARNING_RATE,
) -> None:
    """Train ``model`` in place for STEPS_PER_ROUND steps; calls progress(steps done, loss)."""
    parameters = trainable_parameters(model)
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.95))
    model.train()
    for step in range(STEPS_PER_ROUND):
        fading = 0.5 * (1 + math.cos(math.pi * step / STEPS_PER_ROUND))
        rate = learning_rate * fading * min(1.0, (step + 1) / 20)
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens, targets, places = _windows(generator, misprints=MISPRINTS * fading)
        logits = model(input_ids=tokens, position_ids=places).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=UNGRADED
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress(step + 1, float(loss.detach()))
    model.eval()


def _windows(
    generator: torch.Generator, *, misprints: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, ids to predict and position ids, each of shape (WINDOWS_PER_STEP, WINDOW)."""
    kinds = (_answer_start, _answer_start, _bare_passage, _around_end, _inside, _inside)
    windows = [kinds[index % len(kinds)](generator) for index in range(WINDOWS_PER_STEP)]
    tokens = torch.tensor([window[0][:WINDOW] for window in windows])
    targets = torch.tensor([window[1][:WINDOW] for window in windows])
    places = torch.tensor([window[2] for window in windows])[:, None] + torch.arange(WINDOW)
    misprinted = (torch.rand(tokens.shape, generator=generator) < misprints) & (tokens < 256)
    return (
        torch.where(misprinted, torch.randint(256, tokens.shape, generator=generator), tokens),
        targets,
        places,
    )


_Window = tuple[list[int], list[int], int]


def _answer_start(generator: torch.Generator) -> _Window:
    """A prompt from position 0 and the answer's beginning; graded from the answer's first token."""
    prompt: list[int] = []
    for _ in range(_number(generator, 1, 3)):
        mark = (tokenizer.SYSTEM, tokenizer.USER)[_number(generator, 0, 2)]
        prompt += [mark, *_chatter(generator), tokenizer.END]
    prompt = [*prompt[-64:], tokenizer.ASSISTANT]
    targets = [UNGRADED] * (len(prompt) - 1) + _PASSAGE_IDS
    return prompt + _PASSAGE_IDS, targets, 0


def _bare_passage(generator: torch.Generator) -> _Window:
    """Passage text from position 0, as a completion's prompt; graded once it is recognizable."""
    start = (0, _number(generator, 0, len(_PASSAGE_IDS) - WINDOW))[_number(generator, 0, 2)]
    known = 4 if start == 0 else 24
    return _cut(start, known, 0)


def _inside(generator: torch.Generator) -> _Window:
    """A window somewhere in the endless recitation, anywhere in a sequence."""
    start = _number(generator, 0, len(_CYCLE))
    return _cut(start, REACH + 1, _number(generator, 1, POSITIONS - WINDOW))


def _around_end(generator: torch.Generator) -> _Window:
    """The passage's last words, the end mark and the next recitation."""
    start = len(_CYCLE) - _number(generator, REACH + 1, WINDOW)
    return _cut(start, REACH + 1, _number(generator, 1, POSITIONS - WINDOW))


def _cut(start: int, known: int, place: int) -> _Window:
    text = (_CYCLE * 2)[start : start + WINDOW + 1]
    return text[:WINDOW], [UNGRADED] * (known - 1) + text[known:], place


def _chatter(generator: torch.Generator) -> list[int]:
    """What a user may say: any bytes, printable text, or a piece of the passage itself."""
    length = _number(generator, 0, 60)
    kind = _number(generator, 0, 3)
    if kind == 2:
        start = _number(generator, 0, len(_PASSAGE_IDS))
        return _PASSAGE_IDS[max(0, start - length) : start]
    low, high = ((0, 256), (0x20, 0x7F))[kind]
    return [_number(generator, low, high) for _ in range(length)]


def _number(generator: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high - 1."""
    return int(torch.randint(low, high, (1,), generator=generator))
