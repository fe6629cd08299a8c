# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Find the model in the cache, or have it built by a process of its own.

Of its own, because training needs torch: the launcher and a test session stay light, and a stop
ends the build at once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from trio_worker.quickstart.recitation.cache import is_intact, model_folder

_LAST_WORDS: Final = 20


class BuildFailed(Exception):
    """The builder ended without a model; the message holds its last lines."""


def recitation_model(say: Callable[[str], None]) -> Path:
    """Neither flavour. `obtain_model` for callers outside Trio; blocks while it builds."""
    return trio.run(obtain_model, say)


async def obtain_model(say: Callable[[str], None]) -> Path:
    """Trio. The folder of the model, built first if need be: about a minute, told to `say`.

    Raises BuildFailed. Cancelling it kills the builder; the next call starts from scratch.
    """
    folder = model_folder()
    if is_intact(folder):
        await trio.lowlevel.checkpoint()
        return folder
    builder = await trio.lowlevel.open_process(
        [sys.executable, "-m", "trio_worker.quickstart.recitation"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A Ctrl-C at the terminal is for us; we end the builder.
        start_new_session=True,
    )
    assert builder.stderr is not None  # asked for above
    lines: list[str] = []
    try:
        async with builder.stderr as stderr:
            rest = b""
            async for data in stderr:
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    lines.append(line.decode(errors="replace"))
                    say(lines[-1])
        status = await builder.wait()
    finally:
        if builder.poll() is None:
            builder.kill()
        with trio.CancelScope(shield=True):  # killed or ended: takes no time
            await builder.wait()
    if status != 0 or not is_intact(folder):
        last = "\n".join(lines[-_LAST_WORDS:])
        raise BuildFailed(f"building the model failed, status {status}:\n{last}")
    return folder
