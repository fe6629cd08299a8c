# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Dynamo's ``Context`` and ``ResponseSender`` without the Rust runtime behind them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from .journal import Journal

SENDER_LOST = "response stream is closed; the consumer dropped the response stream"
SENDER_CLOSED = "response stream is closed; send() after close()"
"""What the runtime's ``ResponseSender.send`` raises, word for word (rule 115)."""

SENDER_DEPTH = 128
"""Frames that the runtime's response channel holds before ``send`` blocks its thread."""


class FakeContext:
    """What a handler sees of one request in Dynamo (``dynamo._core.Context``).

    `stop` and `kill` are the client's side. Futures of ``async_killed_or_stopped`` belong to the
    loop that runs when it is called, and are resolved through ``call_soon_threadsafe`` as pyo3
    does; ``is_stopped`` tells it at once.
    """

    def __init__(
        self,
        journal: Journal,
        context_id: str = "dynamo-request",
        *,
        trace_id: str | None = None,
        headers: dict[str, str] | None = None,
        first_token_error: BaseException | None = None,
    ) -> None:
        self._first_token_error = first_token_error
        self._journal = journal
        self._id = context_id
        self._stopped = False
        self._killed = False
        self._headers = headers
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []
        self.first_token_notices = 0
        self.trace_id = trace_id
        self.span_id: str | None = None
        self.parent_span_id: str | None = None
        self.metadata: dict[str, str] = {}

    # ---- the handler's side ----

    def id(self) -> str:
        return self._id

    def is_stopped(self) -> bool:
        return self._stopped

    def is_killed(self) -> bool:
        return self._killed

    def stop_generating(self) -> None:
        self.stop()

    def async_killed_or_stopped(self) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if self._stopped:
            loop.call_soon_threadsafe(_resolve, future)
        else:
            self._waiters.append((loop, future))
        return future

    def notify_first_token(self) -> None:
        self.first_token_notices += 1
        self._journal.record("worker", "first token noticed")
        if self._first_token_error is not None:
            raise self._first_token_error

    def trace_headers(self) -> dict[str, str] | None:
        return self._headers

    # ---- the client's side ----

    def stop(self) -> None:
        """The client asks for no more, or the runtime saw it leave. Again: no effect."""
        self._end("stop")

    def kill(self) -> None:
        """The harder of the two; a killed context is stopped as well."""
        self._killed = True
        self._end("kill")

    def _end(self, how: str) -> None:
        self._journal.record("client", how)
        self._stopped = True
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)


class FakeResponseSender:
    """Dynamo's push egress of one request (``dynamo._core.ResponseSender``).

    Frames are recorded when they are accepted. `lose` is the consumer going away: the next
    ``send`` stops the context and raises. With ``blocking`` a ``send`` into a full channel blocks
    its thread, as the runtime's does, until the client reads or leaves; only for senders that run
    in a thread of their own, since it would block a loop for ever.
    """

    def __init__(
        self,
        journal: Journal,
        context: FakeContext,
        *,
        on_send: Callable[[Any], None] | None = None,
        blocking: bool = False,
        depth: int = SENDER_DEPTH,
    ) -> None:
        self._journal = journal
        self._context = context
        self._on_send = on_send
        self._blocking = blocking
        self._depth = depth
        self._unread = 0
        self._changed = threading.Condition()
        self._lost = False
        self.frames: list[Any] = []
        self.closed = False
        self.error: str | None = None

    # ---- the handler's side ----

    def send(self, obj: Any) -> None:
        with self._changed:
            if self._blocking:
                self._changed.wait_for(lambda: self._unread < self._depth or self._lost)
            if self._lost:
                self._context.stop()
                raise RuntimeError(SENDER_LOST)
            if self.closed:
                raise RuntimeError(SENDER_CLOSED)
            self._unread += 1
            self.frames.append(obj)
        if self._on_send is not None:
            self._on_send(obj)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._journal.record("worker", "response closed")

    def close_with_error(self, msg: str) -> None:
        if not self.closed:
            self.closed = True
            self.error = msg
            self._journal.record("worker", "response closed with error", detail=msg)

    # ---- the client's side ----

    def read(self, frames: int) -> None:
        """Any thread. The client takes `frames` frames out of the channel."""
        with self._changed:
            self._unread = max(0, self._unread - frames)
            self._changed.notify_all()

    def lose(self) -> None:
        """Any thread. The consumer drops the response stream."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()
        self._journal.record("client", "consumer lost")
