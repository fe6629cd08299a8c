# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A recorder with a name and a place to be written to."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trio_worker.recorder import files
from trio_worker.recorder.ring import Event, Recorder
from trio_worker.recorder.trace import Source, Trace, trace_of

logger = logging.getLogger(__name__)

ROUTE = "flight"

MAX_SENT = 5_000
"""Newest events that an answer over HTTP has room for; a file has them all."""


@dataclass(frozen=True, slots=True)
class BlackBox:
    """What becomes of one worker's recorder. Any thread, but for `answer`."""

    recorder: Recorder
    name: str
    folder: Path

    def trace(self, reason: str, newest: int | None = None) -> Trace:
        """What is kept now, or the `newest` events of it."""
        events = self.recorder.events()
        told: list[Event] = events if newest is None else events[-newest:]
        source = Source(
            name=self.name,
            pid=os.getpid(),
            now=self.recorder.now(),
            epoch=self.recorder.epoch(),
            reason=reason,
            complete=len(told) < self.recorder.size and len(told) == len(events),
        )
        return trace_of(told, source)

    def write(self, reason: str) -> Path | None:
        """Into a file, and say so; None where that can't be, or nothing is recorded."""
        if not self.recorder.size:
            return None
        try:
            path = files.write(self.trace(reason), self.folder)
        except OSError as error:
            logger.warning("Flight recorder not written to %s: %s", self.folder, error)
            return None
        logger.info("Flight recorder written to %s (%s)", path, reason)
        return path

    def write_aside(self, reason: str) -> None:
        """The same from a thread of its own: the loop goes on."""
        threading.Thread(target=self.write, args=(reason,), daemon=True).start()

    async def answer(self, body: Any) -> dict[str, Any]:
        """asyncio. The engine route: a trace, or with ``{"file": true}`` where it was written."""
        options = body if isinstance(body, dict) else {}
        loop = asyncio.get_running_loop()
        if options.get("file"):
            path = await loop.run_in_executor(None, self.write, "asked for")
            return {"path": None if path is None else str(path)}
        return await loop.run_in_executor(None, self.trace, "asked for", MAX_SENT)
