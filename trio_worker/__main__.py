# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m trio_worker``: the same flags as ``python -m dynamo.sglang``.

Spawned children run this file again, as ``__mp_main__``: everything sits under the guard.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Neither flavour. Run one worker and end the process with its exit status."""
    if os.environ.get("SNAPSHOT_RESTORE_STANDBY") == "1":
        _hold_for_restore()
    # First: a stop is kept until there is somebody to hear it, and heard during the imports below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

    from compat.signals import install

    signals = install()

    from trio_worker.startup import run

    run(signals, sys.argv[1:])


def _hold_for_restore() -> None:
    """Be the process that a restored worker takes the place of: asleep, and nothing else (R16).

    Before signals are blocked and helpers started: all that would outlast the ``exec``.
    """
    from dynamo.common.snapshot.restore_context import maybe_run_restore_standby_mode

    maybe_run_restore_standby_mode()


if __name__ == "__main__":
    main()
