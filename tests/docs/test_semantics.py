# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""docs/semantics.md: every rule once, with its tests; pictures that are what was recorded."""

from __future__ import annotations

import json
import re

import pytest

from . import pages

PAGE = pages.DOCS / "semantics.md"
writing = pages.tool("write_semantics")
drawing = pages.tool("draw_timeline")


def test_what_can_rot_is_written_anew() -> None:
    """After a change of a test's name or marker: ``python docs/tools/write_semantics.py``."""
    assert writing["written"](PAGE.read_text()) == PAGE.read_text()


def test_a_rule_that_is_missing_or_twice_is_refused() -> None:
    page = PAGE.read_text()
    without = re.sub(r"^\*\*45\.\*\*", "45.", page, flags=re.MULTILINE)
    twice = f"{page}\n**45.** Again.\n"
    with pytest.raises(ValueError, match=re.escape("missing [45], too many []")):
        writing["written"](without)
    with pytest.raises(ValueError, match=re.escape("missing [], too many [45, 45]")):
        writing["written"](twice)


def test_a_rule_that_the_incumbent_does_not_keep_is_marked() -> None:
    fixed = {test.rule for test in writing["rule_tests"]() if test.fixed}
    blocks = re.split(r"\n{2,}", PAGE.read_text())
    rules = (writing["RULE"].match(block) for block in blocks)
    marked = {
        int(rule[1])
        for rule, note in zip(rules, blocks[1:], strict=False)
        if rule and "**[FIX]**" in note
    }
    assert marked == fixed


def test_constants_are_those_of_the_code() -> None:
    code = (pages.ROOT / "trio_worker" / "constants.py").read_text()
    values = dict(re.findall(r"^([A-Z_]+) = ([\d.]+)$", code, re.MULTILINE))
    told: dict[str, str] = {}
    for names, value in re.findall(r"^\| (`[A-Z_`, ]+`) \| ([^|]+) \|", PAGE.read_text(), re.M):
        told |= dict(zip(re.findall(r"[A-Z_]+", names), re.findall(r"[\d.]+", value), strict=True))
    assert told == values


@pytest.mark.parametrize("name", drawing["index"]())
def test_a_picture_is_what_its_recording_gives(name: str) -> None:
    """After a change: ``python docs/tools/draw_timeline.py``."""
    drawn = {file.stem: (file, svg) for file, svg in drawing["pictures"]()}
    file, svg = drawn[name]
    assert file.read_text() == svg
    assert f"timelines/{name}.svg" in PAGE.read_text()


def test_every_rule_that_has_a_test_has_a_picture() -> None:
    tested = {test.rule for test in writing["rule_tests"]()}
    assert {picture["rule"] for picture in drawing["index"]().values()} == tested


def test_no_picture_is_left_over() -> None:
    listed = set(drawing["index"]())
    folder = pages.DOCS / "timelines"
    assert {file.stem for file in folder.glob("*.svg")} == listed
    assert {file.stem for file in folder.glob("*.json")} == listed | {"index"}


def test_recordings_are_of_tests_that_exist() -> None:
    index = json.loads((pages.DOCS / "timelines" / "index.json").read_text())
    for picture in index.values():
        for run in picture["runs"]:
            _, name, _ = re.split(r"\.|\[", run, maxsplit=2)
            assert name in pages.names_of_tests()
