# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The site is built without a warning, from everything that it should hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import pages

MAKEFILE = (pages.ROOT / "Makefile").read_text()
to_rst = pages.tool("docstrings")["to_rst"]


def builds(test: Any) -> Any:
    """A test that needs the site."""
    return pytest.mark.site(pytest.mark.timeout(300)(test))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. The command is the Makefile's."""
    out = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^docs:.*\n\t@\$\(PY\) (.*) docs build/docs$", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    built = subprocess.run(
        [sys.executable, *recipe[1].split(), "-d", str(out / "trees"), "docs", str(out / "html")],
        cwd=pages.ROOT,
        env={**os.environ, "PYTHONPATH": str(pages.ROOT)},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return out / "html"


@builds
def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text()
    for page in pages.PAGES:
        if page.parent == pages.DOCS and page.name not in ("README.md", "index.md"):
            assert (site / f"{page.stem}.html").exists()
            assert f'href="{page.stem}.html"' in index, page.name


@builds
def test_the_api_has_signatures_with_flavours(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text())
    assert re.search(r"async with\s+compat\.loop\.open_loop\(", text)
    assert re.search(r"await\s+trio_worker\.worker\.main\(", text)
    assert "Trio. One worker from its first connection to its exit status" in text


@builds
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)\b[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert fetched == [], page.name


@builds
def test_every_module_of_the_packages_is_in_the_api(site: Path) -> None:
    """But for the packages that are for tests and first steps."""
    told = set(re.findall(r'id="module-([\w.]+)"', (site / "api.html").read_text()))
    aside = re.compile(r"trio_worker\.(standin|quickstart)\.")
    modules = {
        str(file.relative_to(pages.ROOT).with_suffix("")).replace("/", ".")
        for package in pages.CODE
        for file in (pages.ROOT / package).rglob("*.py")
        if not file.stem.startswith("__")
    }
    assert {name for name in modules - told if not aside.match(name)} == set()


def test_docstrings_become_restructured_text() -> None:
    lines = [
        "Trio. A sentence with a *star, an under_score_ and `a_name`",
        "over two lines:",
        "",
        "    a tree",
        "    └─ below",
        "",
        "- one",
        "  more",
        "- two",
        "After the list.",
    ]
    assert to_rst(lines) == [
        "**Trio**\\ . A sentence with a \\*star, an under\\_score\\_ and \\ ``a_name``\\  "
        "over two lines:",
        "",
        "::",
        "",
        "    " + "    a tree",
        "    " + "    └─ below",
        "",
        "- one more",
        "",
        "- two",
        "",
        "After the list.",
        "",
    ]


def test_a_table_is_shown_as_it_stands() -> None:
    assert to_rst(["Two:", "", "| a | b |", "|---|---|"]) == [
        "Two:",
        "",
        "::",
        "",
        "    | a | b |",
        "    |---|---|",
        "",
    ]


def test_a_sentence_that_only_begins_like_a_flavour() -> None:
    assert to_rst(["Trio tasks are many."])[0] == "Trio tasks are many."
    assert to_rst(["Neither flavour; blocks."])[0] == "**Neither flavour**\\ ; blocks."
    assert to_rst(["asyncio or Trio. Both."])[0] == "**asyncio or Trio**\\ . Both."
