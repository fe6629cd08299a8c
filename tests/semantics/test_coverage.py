# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Every rule has its test, or a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import rules


def rule_tests() -> Iterator[tuple[str, dict[str, str]]]:
    """Name, and marker -> its source, of every test in this folder."""
    for file in sorted(Path(__file__).parent.glob("test_rule_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef):
                sources = [ast.unparse(decorator) for decorator in node.decorator_list]
                yield node.name, {source.partition("(")[0]: source for source in sources}


@pytest.mark.parametrize("rule", sorted(rules.RULES_HERE))
def test_rule_is_covered(rule: int) -> None:
    tests = rules.tests_of(rules.all_names()).get(rule, [])
    reason = rules.NOT_HERE.get(rule)
    assert bool(tests) != bool(reason), f"rule {rule}: tests {tests}, reason {reason!r}"


def test_every_test_is_named_after_a_rule_that_belongs_here() -> None:
    named = rules.tests_of(rules.all_names())
    assert set(named) <= rules.RULES_HERE
    assert sum(map(len, named.values())) == len(rules.all_names())


def test_no_test_name_is_used_twice() -> None:
    names = rules.all_names()
    assert len(names) == len(set(names))


def test_all_132_rules_are_accounted_for() -> None:
    elsewhere = {rule for span in rules.ELSEWHERE for rule in span}
    assert rules.RULES_HERE | elsewhere == set(range(1, 133))
    assert not rules.RULES_HERE & elsewhere


def test_each_expected_failure_of_the_incumbent_is_pinned() -> None:
    """A strict expected failure says that it fails, not how: a second test says that."""
    functions = dict(rule_tests())
    fixed = [name for name, marks in functions.items() if "pytest.mark.fixed" in marks]
    assert fixed
    for name in fixed:
        pinned = f"{name[:13]}_incumbent_"
        assert any(other.startswith(pinned) for other in functions), name


def test_rules_that_only_the_incumbent_can_show_are_listed() -> None:
    shown_by_ours = {
        int(name[10:13])
        for name, marks in rule_tests()
        if "'incumbent'" not in marks.get("pytest.mark.only", "")
    }
    tested = set(rules.tests_of(rules.all_names()))
    assert tested - shown_by_ours == set(rules.INCUMBENT_ONLY)
