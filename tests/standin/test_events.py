# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from trio_worker.standin.events import ENVIRONMENT, EventLog, read_events


def test_events_come_back(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "log"))
    log.note("arrive", rid="a")
    log.note("finish", rid="a", tokens=3)
    assert [e["event"] for e in read_events(tmp_path / "log")] == ["arrive", "finish"]
    assert read_events(tmp_path / "log", "finish")[0]["tokens"] == 3


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    first, second = EventLog(str(tmp_path / "log")), EventLog(str(tmp_path / "log"))
    first.note("a")
    second.note("b")
    first.note("c")
    assert [e["event"] for e in read_events(tmp_path / "log")] == ["a", "b", "c"]


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "log"))
    EventLog("").note("a")
    assert len(read_events(tmp_path / "log")) == 1


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.chdir(tmp_path)
    EventLog("").note("a")
    assert list(tmp_path.iterdir()) == []
    assert read_events(tmp_path / "log") == []


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"event": "a"}\n{"eve')
    assert read_events(tmp_path / "log") == [{"event": "a"}]
