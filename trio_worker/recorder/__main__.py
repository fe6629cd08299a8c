# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m trio_worker.recorder draw FILE``: a picture of what a worker has written."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trio_worker.recorder.picture import draw


def main(argv: Sequence[str] | None = None) -> int:
    """Neither flavour. The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trio_worker.recorder",
        description="Draw what a worker's flight recorder has written.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    drawing = commands.add_parser("draw", help="an SVG next to each file")
    drawing.add_argument("files", nargs="+", type=Path, metavar="FILE")
    drawing.add_argument(
        "--requests", type=int, default=60, metavar="COUNT", help="the last so many; default 60"
    )
    drawing.add_argument(
        "--output", type=Path, metavar="SVG", help="where to (one FILE only); - is standard output"
    )
    arguments = parser.parse_args(argv)
    if arguments.output is not None and len(arguments.files) > 1:
        parser.error("--output takes one FILE")
    for file in arguments.files:
        try:
            svg = draw(json.loads(file.read_text()), requests=arguments.requests)
        except (OSError, ValueError, KeyError) as error:
            print(f"{file}: not a trace of ours: {error!r}", file=sys.stderr)
            return 1
        if arguments.output == Path("-"):
            sys.stdout.write(svg)
            continue
        target = arguments.output or file.with_suffix(".svg")
        target.write_text(svg)
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
