# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m dynamo.sglang`` with the stand-in scheduler, unchanged otherwise.

Takes ``--stand-in-scheduler SCRIPT`` or its variable, as ours does. Spawned children run this file
again as ``__mp_main__``: everything sits under the guard.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Neither flavour. Run the incumbent until it ends."""
    os.environ.setdefault("PYTHONHASHSEED", "0")
    from trio_worker.cli import split_args

    options, remaining = split_args(sys.argv[1:])
    sys.argv[1:] = remaining
    import dynamo.sglang.main as incumbent

    from trio_worker.standin import parse_script
    from trio_worker.standin.install import install

    script = parse_script(options.stand_in_scheduler or "")
    # Its worker() would put SGLang's scheduler back.
    incumbent.install_scheduler_process_wrapper = lambda: install(script)
    incumbent.main()


if __name__ == "__main__":
    main()
