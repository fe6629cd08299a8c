# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Examples in the docs run; commands in them exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from . import pages

EXAMPLE = re.compile(r"^<!-- runs: (\w+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)

EXAMPLES = [
    pytest.param(flavour, code, id=f"{page.stem}-{number}")
    for page in pages.PAGES
    for number, (flavour, code) in enumerate(EXAMPLE.findall(page.read_text()))
]
TARGETS = set(re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(("flavour", "code"), EXAMPLES)
def test_example_runs(flavour: str, code: str) -> None:
    if flavour == "asyncio":
        # Apart: the bridge, once imported, changes asyncio for the process.
        whole = f"{code}\nasyncio.run(main())\n"
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", whole], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return
    assert flavour == "trio"
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example", "exec"), names)
    trio.run(names["main"], clock=trio.testing.MockClock(autojump_threshold=0))


def test_an_example_that_does_not_hold_fails() -> None:
    broken = "import asyncio\nasync def main():\n    assert False\n"
    with pytest.raises(AssertionError, match="AssertionError"):
        test_example_runs("asyncio", broken)
    with pytest.raises(AssertionError):
        test_example_runs("trio", broken)


def test_there_are_examples() -> None:
    """So that a change of the form can't empty the tests above."""
    flavours = [example.values[0] for example in EXAMPLES]
    assert flavours.count("trio") >= 5
    assert flavours.count("asyncio") >= 2


def commands(page: Path) -> list[str]:
    """Shell blocks, fenced and indented, with continued lines joined."""
    text = page.read_text()
    without = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = [*SHELL.findall(text), *INDENTED.findall(without)]
    return [re.sub(r"\\\n\s*", "", block) for block in blocks]


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.relative)
def test_commands_can_be_parsed_and_name_what_exists(page: Path) -> None:
    for block in SHELL.findall(page.read_text()):
        checked = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    for block in commands(page):
        for words in re.findall(r"\bmake ([a-z][a-z -]*)", block):
            assert set(words.split()) <= TARGETS | {"and"}, words
        for module in re.findall(r"python -m ((?:trio_worker|compat|tests)[\w.]*)", block):
            path = pages.ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
        for script in re.findall(r"python (docs/\S+)", block):
            assert (pages.ROOT / script).exists(), script


def test_flags_of_the_tutorial_are_those_of_the_launcher() -> None:
    """Its third part does by hand what `make demo` does."""
    tutorial = (pages.DOCS / "tutorial.md").read_text()
    story = (pages.ROOT / "trio_worker" / "quickstart" / "demo" / "story.py").read_text()
    cluster = (pages.ROOT / "trio_worker" / "quickstart" / "cluster.py").read_text()
    engine = re.search(r"CPU_ENGINE_ARGS = \((.*?)\)", cluster, re.DOTALL)
    assert engine is not None
    wanted = re.findall(r'"([^"]+)"', engine[1])
    flat = " ".join(re.sub(r"\\\n", " ", tutorial).split())
    assert " ".join(wanted) in flat
    for name in re.findall(r'"(DYN_\w+)"', cluster):
        assert name in flat, name
    limit = re.search(r"MIGRATION_LIMIT: Final = (\d+)", story)
    grace = re.search(r"GRACE_S: Final = (\d+)", story)
    assert limit is not None
    assert grace is not None
    assert f"--migration-limit {limit[1]}" in flat
    assert f"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS={grace[1]} " in flat
