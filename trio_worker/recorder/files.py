# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Where the flight recorder is written to: few files, the newest ones."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from trio_worker.recorder.trace import Trace

KEPT: Final = 20
"""Files of ours that a folder keeps: a worker that fails again and again must not fill a disk."""


def default_folder() -> Path:
    """Below the system's temporary folder (``TMPDIR``), one for each user."""
    return Path(tempfile.gettempdir(), f"trio-worker-flights-{os.getuid()}")


def write(trace: Trace, folder: Path) -> Path:
    """Neither flavour; any thread. The new file. Raises ``OSError``.

    Whole or not there: it gets its name when it is complete.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix=".flight-", suffix=".part", delete=False
    ) as file:
        # In pieces, so that other threads get their turn.
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(trace["otherData"])},')
        file.write('\n"traceEvents": [\n')
        for number, entry in enumerate(trace["traceEvents"]):
            file.write((",\n" if number else "") + json.dumps(entry))
        file.write("\n]}\n")
    part = Path(file.name)
    path = folder / f"flight-{stamp}-{os.getpid()}-{part.stem.removeprefix('.flight-')}.json"
    part.rename(path)
    for old in sorted(folder.glob("flight-*.json"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
