# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``trio-worker top URL…``; also ``python -m trio_worker top``, ``python -m trio_worker.top``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

import trio
from rich.console import Console

from trio_worker.top.terminal import once, refreshing
from trio_worker.top.watch import base_url


def main(argv: Sequence[str] | None = None) -> int:
    """Neither flavour. The exit status: 1 if `--once` found a worker that does not answer."""
    arguments = _parser().parse_args(argv)
    console = Console()
    if arguments.once:
        return 0 if trio.run(once, arguments.urls, console) else 1
    try:
        trio.run(refreshing, arguments.urls, console, arguments.every)
    except* KeyboardInterrupt:
        pass  # one of the two ways to leave
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trio-worker top",
        description="Show what running workers do: requests, aborts, the way out.",
        epilog="Keys: q leaves, f has each worker write its flight recorder.",
    )
    parser.add_argument(
        "urls",
        nargs="+",
        type=_url,
        metavar="URL",
        help="a worker's status server (DYN_SYSTEM_PORT): http://host:port, host:port, or a port "
        "of this machine",
    )
    parser.add_argument("--once", action="store_true", help="print once and leave")
    parser.add_argument(
        "--every", type=_pace, default=1.0, metavar="SECONDS", help="between looks; default 1"
    )
    return parser


def _url(text: str) -> str:
    try:
        return base_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _pace(text: str) -> float:
    value = float(text)
    if not (value >= 0.05 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"must be 0.05 seconds or more, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
