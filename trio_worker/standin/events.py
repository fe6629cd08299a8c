# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The event log: one JSON object a line, appended by the scheduler, read by tests.

Every line has ``t`` (seconds since the epoch), ``pid`` and ``event``:

==========  ====================================================================================
ready       the scheduler listens (dp_rank)
arrive      a request came in (rid, prompt_tokens)
start       it was prefilled (rid)
abort       an abort came in (rid as sent, abort_all, hit, repeated, ignored: ids)
finish      a request is over (rid, type, status, tokens, and running, waiting after it)
fault       a scripted fault strikes (rid, kind, at)
control     another message (name)
unknown     a message that the stand-in does not know (name)
gauges      running, waiting, arrived, aborts_received, steps, tokens, skipped, sent on SIGUSR1
exit        the process ends (reason, and the gauges)
==========  ====================================================================================

Nothing is written per token.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = "TRIO_WORKER_STAND_IN_LOG"


class EventLog:
    """Appends lines; each is one write, so several schedulers may share a file."""

    def __init__(self, path: str) -> None:
        path = path or os.environ.get(ENVIRONMENT, "")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644) if path else None

    def note(self, event: str, **fields: Any) -> None:
        """Also from a signal handler: no buffer, no lock."""
        if self._file is not None:
            line = {"t": time.time(), "pid": os.getpid(), "event": event, **fields}
            os.write(self._file, json.dumps(line).encode() + b"\n")


def read_events(path: str | os.PathLike[str], event: str | None = None) -> list[dict[str, Any]]:
    """The log so far, or the events of one kind; empty if nobody has written yet."""
    file = Path(path)
    if not file.exists():
        return []
    # What follows the last newline may be a line that is being written.
    whole = file.read_text().rpartition("\n")[0]
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line for line in lines if event is None or line["event"] == event]
