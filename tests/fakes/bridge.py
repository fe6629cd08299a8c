# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The one import point of the event loop that the fakes, the incumbent and ours run on.

With the autojump clock all of its timers are virtual.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio_asyncio

if importlib.util.find_spec("compat.loop") is not None:
    from compat.loop import open_loop
else:

    @asynccontextmanager
    async def open_loop() -> AsyncIterator[trio_asyncio.TrioEventLoop]:
        async with trio_asyncio.open_loop() as loop:
            # SGLang registers handlers for SIGTERM and SIGQUIT with its first request.
            loop.add_signal_handler = lambda *_args: None
            yield loop


__all__ = ["open_loop"]
