# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""How a request ends: pure precedence, and the slot that carries it to the façade."""

from __future__ import annotations

import asyncio

from dynamo.llm.exceptions import EngineShutdown

from trio_worker.responses import SHUTDOWN_MESSAGE


def engine_shutdown() -> BaseException:
    """The installed Dynamo's migratable error (rule 110)."""
    error: BaseException = EngineShutdown(SHUTDOWN_MESSAGE)
    return error


def decide(
    *,
    complete: bool,
    shutting_down: bool,
    client_left: bool,
    submitted: bool,
    error: BaseException | None,
) -> BaseException | None:
    """What the façade raises; None: the request ends normally.

    Worker shutdown > client cancel > engine error > normal end, with two exceptions: an error
    before the request was dispatched propagates even after a cancel (rules 68, 69); a request
    that is `complete` (every choice final, every frame accepted) ends normally even during
    shutdown (rule 129).
    """
    if shutting_down and not complete:
        return engine_shutdown()
    if error is None or complete:
        return None
    if client_left and submitted:
        return None
    return error


class Outcome:
    """One slot, filled once, taken once; keeps no exception afterwards, so leaves no cycle."""

    __slots__ = ("_error", "_unwanted", "ended")

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        """asyncio. Done when the request has ended, whatever the outcome."""
        self._error: BaseException | None = None
        self._unwanted = False

    def put(self, error: BaseException | None) -> None:
        """Trio. The request has ended."""
        if not self.ended.done():
            self._error = None if self._unwanted else error
            self.ended.set_result(None)

    def drop(self) -> None:
        """asyncio. Nobody will take it: an error kept here would keep its frames, and they us."""
        self._unwanted = True
        self._error = None

    def take(self) -> None:
        """asyncio. Raise the outcome, bare and typed; return where the request ended normally."""
        error, self._error = self._error, None
        if error is None:
            return
        try:
            raise error
        finally:
            del error
