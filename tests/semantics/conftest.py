# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The `implementation` fixture, and the markers that say how a rule applies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

import tests.fakes.heavy  # noqa: F401 (pays SGLang's import before per-test time-outs start)

from .harness import Implementation
from .incumbent import Incumbent
from .ours import Ours

OPENERS = {"incumbent": Incumbent, "ours": Ours}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fixed(why): a rule that the incumbent does not keep; strict expected failure"
    )
    config.addinivalue_line(
        "markers", "only(name, why): the test is about one implementation ('incumbent' or 'ours')"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "implementation" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        names = [only.args[0]] if only else list(OPENERS)
        metafunc.parametrize("implementation", names, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixed = item.get_closest_marker("fixed")
        callspec = getattr(item, "callspec", None)
        if fixed and callspec and callspec.params.get("implementation") == "incumbent":
            rule = re.search(r"test_rule_0*(\d+)_", item.name)
            item.add_marker(
                pytest.mark.xfail(
                    strict=True,
                    raises=pytest.RaisesGroup(AssertionError, flatten_subgroups=True),
                    reason=f"rule {rule.group(1) if rule else '?'} [FIX]: {fixed.args[0]}",
                )
            )


@pytest.fixture(scope="session", autouse=True)
def debug_messages() -> Iterator[None]:
    """The harness keeps them all; changing the level per run would cost as much as a run."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    yield
    root.setLevel(level)


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """One of the two implementations, to run scenarios against."""
    name = f"{request.path.stem}::{request.node.name}"
    return Implementation(OPENERS[request.param](), name)
