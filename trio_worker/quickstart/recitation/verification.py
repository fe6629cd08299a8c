# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The proof that a model recites: word for word, with a margin, in both precisions.

Imports torch and transformers, which take seconds: only the builder imports this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from transformers import GPT2LMHeadModel

from trio_worker.quickstart.recitation import tokenizer
from trio_worker.quickstart.recitation.passage import PASSAGE
from trio_worker.quickstart.recitation.tokenizer import ASSISTANT, END, SYSTEM, USER, chat_prompt

MARGIN: Final = 0.95
"""The least probability of each right token after each of PROMPTS: far from a tie, whatever kernel
computes it. Nearly all are above 0.999; a prompt that quotes the passage is the hardest."""

PRECISIONS: Final = (torch.bfloat16, torch.float32)
RECOGNIZABLE: Final = 8
"""Tokens of the passage's beginning that a completion must be given."""

PROMPTS: Final[dict[str, list[int]]] = {
    "nothing": chat_prompt((USER, "")),
    "a word": chat_prompt((USER, "Hi")),
    "a request": chat_prompt((USER, "Please recite.")),
    "a system prompt": chat_prompt((SYSTEM, "You are a helpful assistant."), (USER, "Go on.")),
    "other scripts": chat_prompt((USER, "¿Qué río? 川の歌を。")),
    "a long prompt": chat_prompt(
        (SYSTEM, "Be brief. " * 60), (USER, "Tell me about the weir. " * 30)
    ),
    "a second turn": chat_prompt((USER, "Recite."), (ASSISTANT, PASSAGE), (USER, "Once more.")),
    "the passage as a question": chat_prompt((USER, PASSAGE[:700])),
    "the passage itself": tokenizer.encode(PASSAGE)[:RECOGNIZABLE],
    "the end mark": [*chat_prompt((USER, "Again")), *tokenizer.encode(PASSAGE), END],
}


def least_probability(model: Any, prompt: list[int]) -> float:
    """Of all tokens of the passage and the end mark after ``prompt``, the least sure one's.

    One pass over the whole sequence: attention is causal, so this is the model's answer to each
    prefix of the recitation given as a prompt.
    """
    expected = torch.tensor([*tokenizer.encode(PASSAGE), END])
    if not prompt or prompt[-1] not in (ASSISTANT, END):
        expected = expected[len(prompt) :]
    sequence = torch.cat([torch.tensor(prompt), expected])[None]
    with torch.no_grad():
        logits = model(input_ids=sequence).logits[0, len(prompt) - 1 : -1].float()
    return float(logits.softmax(dim=-1).gather(1, expected[:, None]).min())


def margin(model: Any) -> float:
    """The least of least_probability() over PROMPTS, in the model's own precision."""
    return min(least_probability(model, prompt) for prompt in PROMPTS.values())


def generated(model: Any, prompt: list[int]) -> list[int]:
    """What greedy generation with a KV cache answers to ``prompt``, token by token."""
    tokens = torch.tensor([prompt])
    answer = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=len(PASSAGE) + 100,
        pad_token_id=END,
    )
    return [int(token) for token in answer[0, len(prompt) :]]


def faults(folder: Path) -> list[str]:
    """What keeps the model saved in ``folder`` from being used; empty if it recites."""
    found = []
    for precision in PRECISIONS:
        model = GPT2LMHeadModel.from_pretrained(folder, dtype=precision).eval()
        for name, prompt in PROMPTS.items():
            sure = least_probability(model, prompt)
            if sure < MARGIN:
                found.append(f"{precision}, after {name}: least probability {sure:.4f} < {MARGIN}")
        if generated(model, PROMPTS["a request"]) != [*tokenizer.encode(PASSAGE), END]:
            found.append(f"{precision}: generation is not the passage")
    return found
