# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Where built models live: one folder per recipe, complete or absent.

A folder is built under another name and renamed, so that readers never see half a model. Two
builds at once do the work twice and agree on one result.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

RECIPE: Final = (
    "passage.py",
    "tokenizer.py",
    "architecture.py",
    "training.py",
    "verification.py",
    "builder.py",
)
"""The modules that decide what is built: any change to one of them is another recipe."""
MANIFEST: Final = "manifest.json"

Builder = Callable[[Path], None]
"""Fills the empty folder that it is given."""


def recipe_hash() -> str:
    """Names the recipe: twelve hex digits over the sources that decide what is built."""
    digest = hashlib.sha256()
    for name in RECIPE:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]


def cache_folder() -> Path:
    """The user's cache folder for this project (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trio-worker"


def model_folder() -> Path:
    """Where the model of the present recipe is or will be."""
    return cache_folder() / f"recitation-{recipe_hash()}"


def is_intact(folder: Path) -> bool:
    """Whether ``folder`` holds a finished build, byte for byte."""
    try:
        manifest: dict[str, str] = json.loads((folder / MANIFEST).read_text())
        return all(_digest(folder / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError):
        return False


def build_once(folder: Path, build: Builder) -> Path:
    """Return ``folder``, built first by calling build(empty folder) unless it is intact.

    What build() raises is passed on, and nothing is left behind.
    """
    if is_intact(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made = workplace / "made"
        made.mkdir()
        build(made)
        digests = {path.name: _digest(path) for path in sorted(made.iterdir())}
        (made / MANIFEST).write_text(json.dumps(digests, indent=2) + "\n")
        _publish(made, folder, workplace / "replaced")
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return folder


def _publish(made: Path, folder: Path, replaced: Path) -> None:
    while True:
        try:
            made.rename(folder)
            return
        except OSError:
            if is_intact(folder):  # somebody else was first
                return
            # Damaged: out of the way, in one step as well. Gone meanwhile is as good.
            try:
                folder.rename(replaced)
            except FileNotFoundError:
                continue


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
