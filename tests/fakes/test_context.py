# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The fake context and sender, held against the real classes."""

from __future__ import annotations

import threading

import pytest
import trio_asyncio
from dynamo._core import Context, ResponseSender
from trio.testing import MockClock

from tests.fakes.bridge import open_loop
from tests.fakes.context import SENDER_CLOSED, SENDER_LOST, FakeContext, FakeResponseSender
from tests.fakes.journal import Journal

SPANS = {"current_span", "detached", "start_span"}
"""What of the real context no handler of ours uses."""


def opened_journal() -> Journal:
    journal = Journal()
    journal.open()
    return journal


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


async def test_the_context_has_the_real_ones_names(autojump_clock: MockClock) -> None:
    fake = public(FakeContext(opened_journal()))
    assert public(Context) - SPANS <= fake
    assert fake - public(Context) == {"stop", "kill", "first_token_notices"}


async def test_the_sender_has_the_real_ones_names(autojump_clock: MockClock) -> None:
    assert public(ResponseSender) <= public(FakeResponseSender)


async def test_a_stop_is_seen_at_once_and_its_future_a_moment_later(
    autojump_clock: MockClock,
) -> None:
    async def watch() -> None:
        context = FakeContext(opened_journal())
        before = context.async_killed_or_stopped()
        context.stop()
        assert context.is_stopped()
        assert not context.is_killed()
        assert not before.done()
        assert await before
        assert await context.async_killed_or_stopped()

    async with open_loop():
        await trio_asyncio.aio_as_trio(watch)()


async def test_a_killed_context_is_stopped(autojump_clock: MockClock) -> None:
    context = FakeContext(opened_journal())
    context.kill()
    assert context.is_killed()
    assert context.is_stopped()
    real = Context("id")
    real.stop_generating()
    assert real.is_stopped()


async def test_a_cancelled_watch_does_not_disturb_the_others(autojump_clock: MockClock) -> None:
    async def watch() -> None:
        context = FakeContext(opened_journal())
        given_up, kept = context.async_killed_or_stopped(), context.async_killed_or_stopped()
        given_up.cancel()
        context.stop()
        assert await kept

    async with open_loop():
        await trio_asyncio.aio_as_trio(watch)()


async def test_a_lost_sender_raises_and_stops_the_context(autojump_clock: MockClock) -> None:
    journal = opened_journal()
    context = FakeContext(journal)
    sender = FakeResponseSender(journal, context)
    sender.send({"token_ids": [1]})
    sender.lose()
    assert not context.is_stopped()
    with pytest.raises(RuntimeError, match=SENDER_LOST):
        sender.send({"token_ids": [2]})
    assert context.is_stopped()
    assert sender.frames == [{"token_ids": [1]}]


async def test_a_sender_is_closed_once(autojump_clock: MockClock) -> None:
    journal = opened_journal()
    sender = FakeResponseSender(journal, FakeContext(journal))
    sender.close()
    sender.close()
    sender.close_with_error("too late")
    assert len(journal.of("response closed")) == 1
    assert sender.error is None
    with pytest.raises(RuntimeError) as raised:
        sender.send({})
    assert str(raised.value) == SENDER_CLOSED


@pytest.mark.parametrize("freed_by", ["read", "lose"])
async def test_a_full_sender_blocks_its_thread_until_the_client_reads_or_leaves(
    autojump_clock: MockClock, freed_by: str
) -> None:
    journal = opened_journal()
    sender = FakeResponseSender(journal, FakeContext(journal), blocking=True, depth=2)
    full = threading.Event()
    errors: list[str] = []

    def send_three() -> None:
        sender.send(1)
        sender.send(2)
        full.set()
        try:
            sender.send(3)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=send_three)
    thread.start()
    assert full.wait(5)
    sender.close()  # does not free it
    thread.join(0.05)
    assert thread.is_alive()
    if freed_by == "read":
        sender.read(1)
    else:
        sender.lose()
    thread.join(5)
    assert not thread.is_alive()
    assert errors == [SENDER_CLOSED if freed_by == "read" else SENDER_LOST]
