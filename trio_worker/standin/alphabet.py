# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Which token ids of a model's tokenizer are the single letters a to z."""

import json
import os
from pathlib import Path

from trio_worker.standin.tokens import LETTERS

_TOKENIZER_FILE = "tokenizer.json"


def tokenizer_file(path: str | None, revision: str | None = None) -> str | None:
    """The tokenizer.json of a model folder, or of a hub model that is in the local cache."""
    if not path:
        return None
    local = os.path.join(path, _TOKENIZER_FILE)
    if os.path.isfile(local):
        return local
    if os.path.isdir(path):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(path, _TOKENIZER_FILE, revision=revision)
    return cached if isinstance(cached, str) else None


def find_alphabet(path: str | None, revision: str | None = None) -> tuple[int, ...] | None:
    """The 26 ids, or None if there is no tokenizer.json or a letter is no token of its own."""
    file = tokenizer_file(path, revision)
    if file is None:
        return None
    # Reading the vocabulary itself needs no tokenizer library. Unigram models keep a list.
    vocabulary = json.loads(Path(file).read_text(encoding="utf-8"))["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    if not all(letter in vocabulary for letter in LETTERS):
        return None
    return tuple(vocabulary[letter] for letter in LETTERS)
