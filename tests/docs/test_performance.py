# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The performance page tells what its results say."""

from __future__ import annotations

import json

from tests.docs.pages import DOCS, tool

RESULTS = json.loads((DOCS / "performance" / "results.json").read_text())


def test_figures_are_those_of_the_results() -> None:
    assert tool("write_performance")["main"](["--check"]) == 0


def test_a_figure_that_was_changed_is_found() -> None:
    write = tool("write_performance")
    page = (DOCS / "performance.md").read_text()
    summary = {**RESULTS["summary"], "handover_vs_bare": 9.87}
    assert write["with_figures"](page, write["render"]({**RESULTS, "summary": summary})) != page


def test_every_figure_of_the_summary_has_its_target() -> None:
    assert set(tool("write_performance")["TARGETS"]) == set(RESULTS["summary"])
