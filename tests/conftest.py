# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Fixtures for all tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trio_worker.quickstart.recitation import recitation_model as obtain


@pytest.fixture(scope="session")
def recitation_model() -> Path:
    """The folder of the reciting model."""
    return obtain(_say)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the model, if a test needs it, before any test's clock runs."""
    if session.config.option.collectonly:
        return
    if any("recitation_model" in getattr(item, "fixturenames", ()) for item in session.items):
        obtain(_say)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
