# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Phase 7 of the plan: the end of the process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from compat.processes import kill_descendants
from trio_worker.shutdown.paths import ExitStatus

logger = logging.getLogger(__name__)

FLUSH_S: Final = 0.5
"""Seconds that leaving waits for log handlers and files: a full pipe must not keep the process."""


def leave(
    status: int,
    *,
    tidy: Sequence[Callable[[], object]] = (),
    kill: Callable[[], Sequence[int]] = kill_descendants,
) -> NoReturn:
    """Neither flavour, main thread. End the process now, with `status`.

    Not by returning: interpreter teardown takes 3.4 s with SGLang loaded, waits for threads of
    others, and loses nothing that matters (DESIGN §6). Whatever of ours still lives is killed
    first; what survives that makes the status 70. Of what ``atexit`` would do, temporary
    directories are removed and `tidy` is called; both share `FLUSH_S` with flushing.
    """
    try:
        if survivors := kill():
            logger.error("Killed, but not gone in time: %s", survivors)
            status = ExitStatus.FORCED
        helper = threading.Thread(target=_tidy_and_flush, args=(tidy,), daemon=True)
        helper.start()
        helper.join(FLUSH_S)
    finally:
        os._exit(status)


def _tidy_and_flush(tidy: Sequence[Callable[[], object]]) -> None:
    # Private, so probed; it removes every `TemporaryDirectory`, SGLang's metrics folder among them.
    finalize = getattr(weakref.finalize, "_exitfunc", None)
    for function in (*tidy, *([finalize] if finalize is not None else [])):
        try:
            function()
        except Exception:
            logger.exception("Not tidied up: %r", function)
    for stream in (sys.stdout, sys.stderr):
        # Closed, or a reader that is gone: nobody is left to be told.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    logging.shutdown()
