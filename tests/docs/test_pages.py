# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Links resolve, and whatever the pages name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import pages

every_page = pytest.mark.parametrize("page", pages.PAGES, ids=pages.relative)


@every_page
def test_links_within_the_repository_resolve(page: Path) -> None:
    text = page.read_text()
    for target in pages.links(text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{target} of {pages.relative(page)}"
        if anchor:
            assert anchor in pages.anchors(file.read_text()), target


@every_page
def test_tests_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text()))
    assert named - pages.names_of_tests() == set()


@every_page
def test_modules_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:trio_worker|compat|tests|docs)/[\w/.]*)`", page.read_text())
    missing = [name for name in named if not (pages.ROOT / name).exists()]
    assert missing == []


def test_every_page_is_reached_from_the_index() -> None:
    index = (pages.DOCS / "README.md").read_text()
    targets = {(pages.DOCS / target.partition("#")[0]).resolve() for target in pages.links(index)}
    assert {page for page in pages.PAGES if page.parent == pages.DOCS} - targets == {
        pages.DOCS / "README.md",
        pages.DOCS / "index.md",  # the same for the site
    }


def test_every_module_of_compat_is_told_of() -> None:
    text = (pages.DOCS / "architecture.md").read_text()
    told = set(re.findall(r"\| \[(\w+\.py)\]\(\.\./compat/", text))
    assert told == {file.name for file in (pages.ROOT / "compat").glob("*.py")} - {"__init__.py"}


def test_the_tree_is_the_workers() -> None:
    level = re.compile(r"[└├]─ (\w+)")
    page = (pages.DOCS / "architecture.md").read_text()
    told = page.partition("## The tree")[2].partition("## One request")[0]
    worker = (pages.ROOT / "trio_worker" / "worker.py").read_text().partition("\nfrom ")[0]
    named = [name for name in level.findall(worker) if name != "process"]
    assert level.findall(told) == named
    assert named


@every_page
def test_no_page_names_a_place_of_one_machine(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"(?:^|[\s`(])/(?:work|tmp|home|root)/", text) == []
    assert re.findall(r"\b(?:nvcr|docker|ghcr|quay|gcr|pypi)\.(?:io|com|org)\b", text) == []
