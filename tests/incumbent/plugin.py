# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""pytest plugin for a run of the incumbent's tests; loaded with ``-p tests.incumbent.plugin``.

Imports are paid here, before the tests' own time-outs of 5 s start.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.incumbent.not_applicable import NOT_APPLICABLE, NOT_RUNNABLE
from trio_worker.quickstart.cluster import free_port

AGAINST = os.environ.get("TRIO_WORKER_TESTS_AGAINST", "incumbent")
REPORT = os.environ.get("TRIO_WORKER_TESTS_REPORT")

import tests.fakes.heavy  # noqa: E402, F401 (pays SGLang's import; after the settings above)

if AGAINST == "ours":
    from tests.incumbent import peer

    @pytest.fixture
    def unused_tcp_port() -> int:
        """pytest-asyncio's fixture of that name; it is not loaded here."""
        return free_port()


outcomes: Counter[str] = Counter()
failed: list[str] = []
left_out: dict[str, str] = {}


def short_name(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def pytest_sessionstart() -> None:
    if AGAINST == "ours":
        peer.rebind()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if item.name not in NOT_RUNNABLE.get(item.path.name, {})]
    if AGAINST != "ours":
        return
    kept = []
    for item in items:
        reasons = NOT_APPLICABLE.get(item.path.name, {})
        reason = reasons.get(item.name) or reasons.get(getattr(item, "originalname", ""))
        if reason is None:
            kept.append(item)
        else:
            left_out[short_name(item)] = reason
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on the worker's loop, when it is run against ours."""
    if AGAINST != "ours" or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    peer.run_test(pyfuncitem.obj, arguments)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        outcomes[report.outcome] += 1
        if report.outcome == "failed":
            failed.append(report.nodeid.rpartition("/")[2])


def pytest_sessionfinish() -> None:
    if REPORT:
        document = {
            "against": AGAINST,
            "outcomes": dict(outcomes),
            "failed": failed,
            "left_out": left_out,
            "trio_asyncio_imported": "trio_asyncio" in sys.modules,
        }
        Path(REPORT).write_text(json.dumps(document, indent=1))
