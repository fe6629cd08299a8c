# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The shutdown page tells what the trials saw, and its picture is what was recorded."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.docs.pages import DOCS, tool

write = tool("write_trials")


def test_tables_and_picture_are_those_of_the_runs() -> None:
    """After a run: see the script's first lines."""
    assert write["main"](["--check"]) == 0


def test_a_table_that_was_changed_is_found() -> None:
    page = (DOCS / "shutdown.md").read_text()
    runs = json.loads((DOCS / "trials" / "results.json").read_text())
    changed = [{**runs[0], "table": ["| none |"]}, *runs[1:]]
    assert write["with_tables"](page, write["render"](changed)) != page


def test_a_workers_log_tells_when_it_served_and_stopped() -> None:
    zero = datetime(2026, 12, 1, 10, tzinfo=UTC).timestamp()
    log = (
        "\x1b[2m2026-12-01T10:00:01.000000Z\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mregister\x1b[0m"
        "\x1b[2m:\x1b[0m Model registration succeeded; processing queued requests\n"
        "2026-12-01T10:00:09.500000Z  INFO signals._log: Received signal 15, starting graceful"
        " shutdown\n"
        "2026-12-01T10:00:12.000000Z  INFO plan._record: Shutdown phase 2 (drain) took 2.25 s:"
        " idle\n"
    )
    assert write["stop_of"](log) == {
        "ready": zero + 1,
        "asked": zero + 9.5,
        "phases": [{"name": "drain", "from": zero + 9.75, "to": zero + 12}],
    }


def test_a_worker_that_was_not_stopped_is_not_drawn() -> None:
    line = "2026-12-01T10:00:01.000000Z  INFO register: Model registration succeeded\n"
    assert write["stop_of"](line) is None
