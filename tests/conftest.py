# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Fixtures for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_worker.quickstart.recitation import recitation_model as obtain


@pytest.fixture(scope="session")
def recitation_model() -> Path:
    """The folder of the reciting model."""
    return obtain(_say)


@pytest.fixture(autouse=True)
def _the_environment_stays() -> Iterator[None]:
    """What a test leaves there is found by every process that a later one starts."""
    before = _environment()
    yield
    left = dict(_environment().items() ^ before.items())
    for name in left:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not left


def _environment() -> dict[str, str]:
    own = "PYTEST_CURRENT_TEST"  # pytest's, new in each phase
    return {name: value for name, value in os.environ.items() if name != own}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the model, if a test needs it, before any test's clock runs."""
    if session.config.option.collectonly:
        return
    if any("recitation_model" in getattr(item, "fixturenames", ()) for item in session.items):
        obtain(_say)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
