# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our docstrings are plain text: paragraphs, lists of dashes, indented blocks, names in backticks.

Sphinx reads reStructuredText. `to_rst` makes one of the other, so that a star or an underscore in
a sentence is a star or an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

FLAVOUR = re.compile(r"(Trio or asyncio|asyncio or Trio|Neither flavour|Trio|asyncio)(?=[.,:;])")
CODE = re.compile(r"``(.+?)``|`(.+?)`")
MARKUP = re.compile(r"([\\*_|`<])")


def to_rst(lines: Sequence[str]) -> list[str]:
    """Pure. The lines of a docstring, as Sphinx wants them."""
    out: list[str] = []
    for kind, block in _blocks(lines):
        if kind == "indented":
            out += ["::", "", *(f"    {line}" for line in block)]
        elif kind == "item":
            text = " ".join(line.strip() for line in block)
            out.append(f"- {_inline(text[2:])}")
        else:
            text = " ".join(block)
            flavour = None if out else FLAVOUR.match(text)
            if flavour is None:
                out.append(_inline(text))
            else:
                out.append(f"**{flavour[0]}**\\ {_inline(text[flavour.end() :])}")
        out.append("")
    return out


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Paragraphs, list items and indented blocks, in order."""
    kind, block = "", []
    for line in [*lines, ""]:
        if not line.strip():
            new = "indented" if kind == "indented" else ""
        elif line.startswith("- "):
            new = "item"
        elif line.startswith("|"):  # a table, shown as it stands
            new = "indented"
        elif line.startswith(" "):
            new = "item" if kind == "item" else "indented"
        else:
            new = "text"
        if block and (new != kind or line.startswith("- ")):
            yield kind, _stripped(block)
            block = []
        kind = new
        if new:
            block.append(line)
    if block:
        yield kind, _stripped(block)


def _stripped(block: list[str]) -> list[str]:
    while block and not block[-1].strip():
        block.pop()
    return block


def _inline(text: str) -> str:
    """A sentence with its names as literals and nothing else marked up."""
    parts, place = [], 0
    for code in CODE.finditer(text):
        parts.append(MARKUP.sub(r"\\\1", text[place : code.start()]))
        # An escaped space on either side: what is glued to a name is no part of it.
        parts.append(f"\\ ``{code[1] or code[2]}``\\ ")
        place = code.end()
    parts.append(MARKUP.sub(r"\\\1", text[place:]))
    return "".join(parts)
