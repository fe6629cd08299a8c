# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Excerpts of code in the docs stand in the file that is named above them, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import pages

EXCERPT = re.compile(r"^<!-- (\S+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^<!-- runs: \w+ -->\n```python$", re.MULTILINE)
PYTHON = re.compile(r"^```python$", re.MULTILINE)

EXCERPTS = [
    (page, file, text) for page in pages.PAGES for file, text in EXCERPT.findall(page.read_text())
]


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.relative)
def test_no_code_without_its_source(page: Path) -> None:
    text = page.read_text()
    assert len(PYTHON.findall(text)) == len(EXCERPT.findall(text)) + len(EXAMPLE.findall(text))


@pytest.mark.parametrize(
    ("page", "file", "text"),
    EXCERPTS,
    ids=[f"{page.stem}-{file}-{number}" for number, (page, file, _) in enumerate(EXCERPTS)],
)
def test_excerpt_is_in_its_source(page: Path, file: str, text: str) -> None:
    source = (pages.ROOT / file).read_text()
    place = 0
    for part in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE):
        found = source.find(f"\n{part}", place)
        assert found >= 0, f"{pages.relative(page)}: not in {file} any more:\n{part}"
        place = found + len(part)


def test_there_are_excerpts() -> None:
    """So that a change of the form can't empty the two tests above."""
    assert len(EXCERPTS) >= 10
