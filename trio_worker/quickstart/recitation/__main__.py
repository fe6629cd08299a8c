# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m trio_worker.quickstart.recitation``: build the model if need be, print its folder.

Progress goes to standard error, the folder to standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trio_worker.quickstart.recitation import cache


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


def build(empty: Path) -> None:
    """Train into the folder `empty`; blocks."""
    say("building the reciting model, once: importing torch")
    from transformers.utils import logging

    from trio_worker.quickstart.recitation import builder

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    builder.build(empty, say)


def main() -> int:
    """Exit status 0; a model that does not recite ends it with that exception."""
    print(cache.build_once(cache.model_folder(), build))
    return 0


if __name__ == "__main__":
    sys.exit(main())
