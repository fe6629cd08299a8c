# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""From the first line to Trio: arguments, slow imports in the right order, and the way out."""

from __future__ import annotations

import os
from typing import NoReturn

from compat.signals import StopSignals
from trio_worker.cli import split_args


def run(signals: StopSignals, argv: list[str]) -> NoReturn:
    """Neither flavour. Run one worker and end the process; statuses are DESIGN §6's."""
    # For the children, as the incumbent's entrypoint does.
    os.environ.setdefault("PYTHONHASHSEED", "0")
    options, remaining = split_args(argv)
    # SGLang sets asyncio's loop policy when it is imported, which Trio would not allow later.
    from trio_worker.process import run_process

    run_process(signals, options, remaining)
