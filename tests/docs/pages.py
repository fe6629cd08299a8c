# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The pages of the docs, taken apart."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
CODE = ("trio_worker", "compat")


def tool(name: str) -> dict[str, Any]:
    """A script's globals."""
    return runpy.run_path(str(DOCS / "tools" / f"{name}.py"))


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(text: str) -> Iterator[str]:
    """Targets of Markdown links and pictures, code blocks left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(r"\]\(([^)\s]+)\)", prose):
        yield match[1]


def anchors(text: str) -> set[str]:
    """GitHub's names of the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def names_of_tests() -> set[str]:
    """Every test function of the project, from the source."""
    return {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }


def source() -> str:
    """All of the package's code."""
    files = (file for package in CODE for file in sorted((ROOT / package).rglob("*.py")))
    return "\n".join(file.read_text() for file in files)
