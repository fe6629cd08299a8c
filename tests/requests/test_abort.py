# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.requests.abort: what no scenario of ``tests/semantics`` shows."""

from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from compat.loop import open_loop
from compat.tap import Flight
from trio_worker import constants
from trio_worker.requests.abort import AbortEnd, Aborts

RID = "rid"


class Manager:
    """Sends as pyzmq does: each send gives a future of the current loop."""

    def __init__(self) -> None:
        self.state: Any = SimpleNamespace(
            time_stats=SimpleNamespace(api_server_dispatch_finish_time=0.0), abort_sent=False
        )
        self.rid_to_state = {RID: self.state}
        self.sent: list[asyncio.Future[None]] = []

    def abort_request(self, rid: str, abort_all: bool) -> None:
        if not self.state.abort_sent:
            self.state.abort_sent = True
            self.sent.append(asyncio.Future())


@pytest.mark.parametrize("order_is_proven", [True, False])
async def test_an_abort_ordered_in_the_empty_context_of_the_runtime_is_sent(
    order_is_proven: bool, autojump_clock: MockClock
) -> None:
    manager = Manager()
    ends: list[AbortEnd] = []
    async with open_loop() as loop, trio.open_nursery() as nursery:
        aborts = Aborts(manager, nursery, order_is_proven=order_is_proven)
        flight = Flight(RID, None)
        # The callback that tells of a client's stop was added in a call from Rust.
        contextvars.Context().run(aborts.order, flight, "request", ends.append)
        await trio.sleep(0.1)
        assert not manager.sent  # rule 25: not dispatched yet
        manager.state.time_stats.api_server_dispatch_finish_time = 1.0
        await trio.sleep(1.0)
        assert ends == [AbortEnd.SENT]
        assert all(future.get_loop() is loop for future in manager.sent)
        # Within a second: retries after 0.05, 0.15, 0.35 and 0.75 s (rule 31).
        assert len(manager.sent) == (1 if order_is_proven else 5)
        assert aborts.counts.failed == 0
        nursery.cancel_scope.cancel()


def test_retries_fit_the_time_that_the_test_above_gives_them() -> None:
    assert (constants.ABORT_RETRY_FIRST_S, constants.ABORT_RETRY_MAX_S) == (0.05, 1.0)
