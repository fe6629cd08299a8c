# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The screen and the keys."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import trio
from rich.console import Console
from rich.live import Live

from trio_worker.top.render import screen
from trio_worker.top.watch import Watched


async def once(urls: Sequence[str], console: Console) -> bool:
    """Trio. Print what the workers say now; whether all of them answered."""
    async with httpx.AsyncClient(trust_env=False) as client:
        watched = [Watched(url, client) for url in urls]
        await _look_at_all(watched)
    console.print(screen(watched, trio.current_time(), console.height))
    return not any(one.trouble for one in watched)


async def refreshing(urls: Sequence[str], console: Console, every: float) -> None:
    """Trio. Until ``q`` is pressed, or it is cancelled."""
    async with httpx.AsyncClient(trust_env=False) as client:
        watched = [Watched(url, client) for url in urls]
        with (
            _keys(sys.stdin.fileno()) as keys,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            async with trio.open_nursery() as nursery:
                if keys is not None:
                    nursery.start_soon(_obey, keys, watched, nursery)
                while True:
                    await _look_at_all(watched)
                    live.update(screen(watched, trio.current_time(), console.height), refresh=True)
                    await trio.sleep(every)


async def _look_at_all(watched: Sequence[Watched]) -> None:
    async with trio.open_nursery() as nursery:
        for one in watched:
            nursery.start_soon(one.look)


async def _obey(keys: int, watched: Sequence[Watched], nursery: trio.Nursery) -> None:
    """Trio. ``q`` leaves, ``f`` has the flight recorders written."""
    while True:
        await trio.lowlevel.wait_readable(keys)
        pressed = os.read(keys, 64).decode(errors="replace").lower()
        if "q" in pressed or not pressed:
            nursery.cancel_scope.cancel()
            return
        if "f" in pressed:
            for one in watched:
                nursery.start_soon(one.write_flight)


@contextmanager
def _keys(descriptor: int) -> Iterator[int | None]:
    """A terminal that gives keys one by one, and is as it was afterwards; None: there is none."""
    if not os.isatty(descriptor):
        yield None
        return
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
