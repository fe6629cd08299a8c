# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Train the model, save it and prove that what was saved recites.

Imports torch and transformers, which take seconds: run it in a process of its own
(``python -m trio_worker.quickstart.recitation``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from trio_worker.quickstart.recitation import architecture, tokenizer, training, verification

SEED: Final = 4
ROUNDS: Final = 5
"""One round is enough where the seed was chosen. A processor that rounds differently trains a
slightly different model, and may need another."""
LATER_LEARNING_RATE: Final = 1e-3
THREADS: Final = 1
"""Fixed, because the order of a sum, and so the weights, would follow the number of threads. One,
because on a busy machine threads that wait for each other lose more than they gain."""


class DoesNotRecite(Exception):
    """The trained model does not recite the passage exactly, with the margin asked for."""


def build(folder: Path, say: Callable[[str], None]) -> None:
    """Write a complete model into the empty ``folder``; blocks for about a minute.

    Raises DoesNotRecite, and then the folder's content must not be used.
    """
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(SEED)
    model = _train(generator, say)
    say("saving, then checking the saved model word for word")
    save(model, folder)
    faults = verification.faults(folder)
    if faults:
        raise DoesNotRecite("; ".join(faults))


def save(model: Any, folder: Path) -> None:
    """Write weights in bfloat16, configuration and tokenizer."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer.tokenizer_config(), indent=2) + "\n"
    )


def _train(generator: torch.Generator, say: Callable[[str], None]) -> Any:
    model = architecture.new_model(generator)
    for number in range(1, ROUNDS + 1):

        def progress(step: int, loss: float, number: int = number) -> None:
            if step % 50 == 0 or step == 1:
                steps = training.STEPS_PER_ROUND
                say(f"training, round {number}: step {step} of {steps}, loss {loss:.4f}")

        rate = training.LEARNING_RATE if number == 1 else LATER_LEARNING_RATE
        training.train_round(model, generator, progress, learning_rate=rate)
        margin = verification.margin(model)
        say(f"round {number}: the least sure of all right tokens has probability {margin:.4f}")
        # Rounding to bfloat16 moves it a little; faults() has the last word.
        if margin >= (1 + verification.MARGIN) / 2 or number == ROUNDS:
            break
    return model
