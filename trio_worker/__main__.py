# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m trio_worker``: the same flags as ``python -m dynamo.sglang``.

``… top URL`` shows running workers instead (`trio_worker.top`); the incumbent takes no positional
arguments, so nothing of its command line can mean that.

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
    if sys.argv[1:2] == ["top"]:
        from trio_worker.top.__main__ import main as show

        sys.exit(show(sys.argv[2:]))
    # First: a stop is kept until there is somebody to hear it, and heard during the imports below;
    # a look inside is not taken for the end.
    kept = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, kept)

    from compat.signals import install

    signals = install()
    signals.doing("starting: importing")

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
