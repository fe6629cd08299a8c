# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.recorder.ring: bounded, plain, readable while it is written."""

from __future__ import annotations

import gc

import pytest
import trio
from trio.testing import MockClock

from trio_worker.recorder import Event, Recorder, events


async def test_events_have_the_time_of_trios_clock(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    note = recorder.lane()
    note(events.RECEIVED, "context")
    await trio.sleep(2.5)
    note(events.ENDED, "complete")
    first, last = recorder.events()
    assert first == (first.time, 1, "received", "context")
    assert last == (first.time + 2.5, 1, "ended", "complete")
    assert recorder.now() == last.time


async def test_an_event_has_the_same_time_in_every_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    before = recorder.epoch()
    monkeypatch.setattr("time.time", lambda: 1.0)
    assert recorder.epoch() == before


async def test_each_request_has_a_lane_and_the_worker_the_first() -> None:
    recorder = Recorder()
    notes = [recorder.lane() for _ in range(3)]
    for note in reversed(notes):
        note(events.RECEIVED)
    recorder.note_worker(events.STAGE, "serving")
    assert [event.lane for event in recorder.events()] == [3, 2, 1, events.WORKER]


async def test_the_oldest_are_forgotten() -> None:
    recorder = Recorder(size=3)
    note = recorder.lane()
    for number in range(10):
        note(events.RECEIVED, str(number))
    assert [event.detail for event in recorder.events()] == ["7", "8", "9"]


async def test_off_it_keeps_nothing() -> None:
    recorder = Recorder(size=0)
    recorder.lane()(events.RECEIVED)
    assert recorder.events() == []


async def test_what_it_keeps_is_none_of_the_collectors_business() -> None:
    recorder = Recorder()
    recorder.lane()(events.RECEIVED, "context")
    gc.collect()
    assert not any(gc.is_tracked(event) for event in recorder._ring)
    assert isinstance(recorder.events()[0], Event)
