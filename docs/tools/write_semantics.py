# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Writes what can rot into `docs/semantics.md`: each rule's tests, their recorded timeline, and
what the incumbent does.

A rule is a paragraph that begins with its number in bold. The sentences are written by hand; the
quoted lines below them are written here, from names and markers of the tests in `tests/semantics`,
from `tests/semantics/rules.py` and from `docs/timelines/index.json`; pictures that the page itself
shows are not linked again. ``--check`` writes nothing and fails where they differ.
Imports nothing of the project.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "semantics.md"
TESTS = ROOT / "tests" / "semantics"
PICTURES = ROOT / "docs" / "timelines" / "index.json"

RULE = re.compile(r"\*\*(\d+)\.\*\* ")


@dataclass(frozen=True)
class RuleTest:
    """One test function, from its source."""

    rule: int
    name: str
    file: str
    fixed: str
    """What the incumbent does instead; empty: it keeps the rule."""
    only: str
    """The one implementation that it is about; empty: both."""


def rule_tests() -> Iterator[RuleTest]:
    """Every test that is named after a rule, in the order of the files."""
    for file in sorted(TESTS.glob("test_rule_*.py")):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.AsyncFunctionDef):
                continue
            if match := re.match(r"test_rule_(\d{3})_", node.name):
                marks = dict(_marks(node))
                yield RuleTest(
                    rule=int(match[1]),
                    name=node.name,
                    file=file.name,
                    fixed=(marks.get("fixed") or [""])[0],
                    only=(marks.get("only") or [""])[0],
                )


def _marks(function: ast.AsyncFunctionDef) -> Iterator[tuple[str, list[Any]]]:
    """Markers with their literal arguments."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id == "pushed":
            yield "only", ["ours"]
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute):
            name = decorator.func.attr
            if name in ("fixed", "only"):
                yield name, [ast.literal_eval(argument) for argument in decorator.args]


def rules() -> dict[str, Any]:
    """What `tests/semantics/rules.py` says; it imports only the standard library."""
    return runpy.run_path(str(TESTS / "rules.py"))


def linked_pictures(page: str) -> dict[int, list[str]]:
    """Names of the pictures of each rule, but for those that `page` shows."""
    linked: dict[int, list[str]] = {}
    for name, picture in json.loads(PICTURES.read_text()).items():
        if not re.search(rf"!\[.*\]\(timelines/{name}\.svg\)", page):
            linked.setdefault(picture["rule"], []).append(name)
    return linked


def note(
    rule: int, tests: Sequence[RuleTest], pictures: Sequence[str], told: dict[str, Any]
) -> str:
    """The quoted lines of one rule."""
    lines = []
    for reason in dict.fromkeys(test.fixed for test in tests if test.fixed):
        lines.append(f"**[FIX]** The incumbent: {reason}.")
    if rule in told["NOT_HERE"]:
        lines.append(f"No test here: {told['NOT_HERE'][rule]}.")
    if rule in told["INCUMBENT_ONLY"]:
        lines.append(f"Run against the incumbent only: {told['INCUMBENT_ONLY'][rule]}.")
    if tests:
        lines.append("Tests: " + ", ".join(map(_link, tests)))
    for picture in pictures:
        lines.append(f"Timeline: [recorded](timelines/{picture}.svg)")
    return "".join(f"> {line}\n>\n" for line in lines).removesuffix(">\n")


def _link(test: RuleTest) -> str:
    return f"[`{test.name}`](../tests/semantics/{test.file})"


def written(page: str) -> str:
    """`page` with every rule's quoted lines as they should be. Raises ValueError."""
    told = rules()
    pictures = linked_pictures(page)
    tests: dict[int, list[RuleTest]] = {}
    for test in rule_tests():
        tests.setdefault(test.rule, []).append(test)
    seen: list[int] = []
    blocks: list[str] = []
    for block in re.split(r"\n{2,}", page.strip()):
        if block.startswith(">") and blocks and blocks[-1].startswith(">"):
            continue  # what stood there before
        blocks.append(block)
        if match := RULE.match(block):
            seen.append(int(match[1]))
            rule = seen[-1]
            quoted = note(rule, tests.get(rule, []), pictures.get(rule, []), told)
            blocks.append(quoted.strip())
    if sorted(seen) != sorted(told["RULES_HERE"]):
        raise ValueError(
            f"missing {sorted(told['RULES_HERE'] - set(seen))},"
            f" too many {sorted(rule for rule in seen if seen.count(rule) > 1)}"
        )
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tests' names into docs/semantics.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    new = written(page)
    if not arguments.check:
        PAGE.write_text(new)
    return int(arguments.check and new != page)


if __name__ == "__main__":
    sys.exit(main())
