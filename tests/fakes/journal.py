# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The call log of one run: who did what to which rid, and when in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import trio
from trio.abc import Clock


@dataclass(frozen=True)
class Entry:
    """One thing that happened."""

    time: float
    """Virtual seconds since the journal was opened."""
    actor: str
    """client, runtime, worker, its flight recorder, sglang (the tokenizer manager), scheduler, or
    log."""
    event: str
    rid: str | None = None
    detail: Any = None


@dataclass
class Journal:
    """Append-only; `watch` calls back inside `record`, at the very moment of an event."""

    entries: list[Entry] = field(default_factory=list)
    _opened: float = 0.0
    _clock: Clock | None = None
    _watchers: list[Callable[[Entry], None]] = field(default_factory=list)

    def open(self) -> None:
        """Trio or asyncio. Virtual time is counted from here."""
        self._clock = trio.lowlevel.current_clock()
        self._opened = self._clock.current_time()

    def now(self) -> float:
        """Any thread. Virtual seconds since `open`, without the noise of float addition."""
        assert self._clock is not None, "the journal has not been opened"
        return round(self._clock.current_time() - self._opened, 6)

    def record(self, actor: str, event: str, rid: str | None = None, detail: Any = None) -> None:
        """Any thread."""
        entry = Entry(self.now(), actor, event, rid, detail)
        self.entries.append(entry)
        for watcher in tuple(self._watchers):
            watcher(entry)

    def watch(self, watcher: Callable[[Entry], None]) -> None:
        """Have `watcher` called with each later entry, synchronously."""
        self._watchers.append(watcher)

    def of(self, event: str, *, actor: str | None = None) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.event == event and (actor is None or entry.actor == actor)
        ]

    def as_rows(self) -> list[dict[str, Any]]:
        """Plain data for a timeline; rids are renamed r1, r2, … in order of appearance."""
        rids = dict.fromkeys(entry.rid for entry in self.entries if entry.rid is not None)
        names = {rid: f"r{index}" for index, rid in enumerate(rids, 1)}
        rows = []
        for entry in self.entries:
            row = asdict(entry)
            if entry.rid is not None:
                row["rid"] = names[entry.rid]
            if isinstance(entry.detail, str):
                for rid, name in names.items():
                    row["detail"] = row["detail"].replace(rid, name)
            rows.append(row)
        return rows
