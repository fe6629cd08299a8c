# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Descriptors, zmq, streams and subprocesses on the loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import zmq
import zmq.asyncio

from compat.loop import BATCH_CALLBACKS, WorkerLoop, open_loop

from .loop_steps import counted_steps, no_time_bound  # noqa: F401  # a fixture


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def rounds(number: int) -> None:
    for _ in range(number):
        await trio.lowlevel.checkpoint()


async def test_readers_are_level_triggered() -> None:
    """SGLang's encoder runtime relies on it (`add_reader` on a process sentinel)."""
    calls: list[str] = []

    def reader() -> None:
        calls.append("called")
        if len(calls) == 3:
            # In the callback itself, with the data still unread.
            assert loop.remove_reader(ours)

    with socket_pair() as (ours, theirs):
        async with open_loop() as loop:
            loop.add_reader(ours, reader)
            theirs.send(b"x")
            await rounds(50)
            assert calls == ["called"] * 3
            assert not loop.remove_reader(ours)


async def test_one_descriptor_can_have_a_reader_and_a_writer() -> None:
    events: list[str] = []

    def writer() -> None:
        events.append("writable")
        loop.remove_writer(ours)

    def reader() -> None:
        events.append(f"read {ours.recv(10)!r}")

    with socket_pair() as (ours, theirs):
        async with open_loop() as loop:
            loop.add_reader(ours, print)
            loop.add_reader(ours, reader)  # replaces
            loop.add_writer(ours, writer)
            await rounds(10)
            theirs.send(b"x")
            await rounds(10)
            handle = loop.add_reader(ours, reader)
            handle.cancel()
            theirs.send(b"y")
            await rounds(10)
    assert events == ["writable", "read b'x'"]


async def test_a_callback_comes_before_what_its_next_event_queues() -> None:
    events: list[str] = []

    def reader() -> None:
        events.append("event")
        loop.call_soon(events.append, "its callback")
        if len(events) > 4:
            loop.remove_reader(ours)

    with socket_pair() as (ours, theirs):
        async with open_loop() as loop:
            loop.add_reader(ours, reader)
            theirs.send(b"x")
            await rounds(50)
    assert events == ["event", "its callback"] * 3


async def test_an_event_is_queued_once_behind_a_long_queue() -> None:
    calls: list[bytes] = []

    def busy(left: int) -> None:
        if left:
            loop.call_soon(busy, left - 1)

    with socket_pair() as (ours, theirs):
        async with open_loop() as loop:
            loop.add_reader(ours, lambda: calls.append(ours.recv(10)))
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5 * BATCH_CALLBACKS):
                loop.call_soon(busy, 3)
            theirs.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
    assert calls == [b"x"]
    assert loop.unhandled_errors == 0  # a second call would find nothing to read


async def test_add_reader_refuses_what_asyncio_refuses() -> None:
    async with open_loop() as loop:
        fd = os.open(os.devnull, os.O_RDONLY)
        with pytest.raises(PermissionError):
            # epoll does not take it, and asyncio says so at once.
            loop.add_reader(fd, print)
        os.close(fd)
        with pytest.raises(ValueError, match="Invalid file"):
            loop.add_reader(object(), print)


@pytest.mark.usefixtures("no_time_bound")
async def test_all_ready_descriptors_cost_one_wake_up() -> None:
    seen: list[int] = []

    with socket_pair() as (ours, theirs), socket_pair() as (ours2, theirs2):
        async with open_loop() as loop:
            for number, sock in enumerate((ours, ours2)):
                loop.add_reader(sock, lambda n=number, s=sock: seen.append(n) or s.recv(10))
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"x")
            theirs2.send(b"x")
            with counted_steps(loop) as steps:
                await trio.testing.wait_all_tasks_blocked()
    assert sorted(seen) == [0, 1]
    assert (steps.poller, steps.runner) == (1, 0)


async def test_autoclose_closes_watched_descriptors() -> None:
    read_end, write_end = os.pipe()
    kept_read, kept_write = os.pipe()
    try:
        async with open_loop() as loop:
            for fd in (read_end, kept_read):
                loop.add_reader(fd, print)
                loop.autoclose(fd)
            loop.no_autoclose(kept_read)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(read_end)
        os.fstat(kept_read)
    finally:
        for fd in (write_end, kept_read, kept_write):
            os.close(fd)


async def test_descriptors_from_tasks_that_rust_started() -> None:
    """In an empty context too, the reader's callback finds its loop."""
    found: list[object] = []

    def reader() -> None:
        found.append(asyncio.get_running_loop())
        ours.recv(10)
        done.set()

    with socket_pair() as (ours, theirs):
        async with open_loop() as loop:
            done = trio.Event()
            loop.call_soon(loop.add_reader, ours, reader, context=contextvars.Context())
            theirs.send(b"x")
            await done.wait()
    assert found == [loop]


# ---- zmq ----


@asynccontextmanager
async def zmq_pair(kind: int, peer: int) -> AsyncIterator[tuple[zmq.Socket, zmq.asyncio.Socket]]:
    """A plain socket, and an asyncio one to be used on the loop."""
    context = zmq.Context()
    ours = zmq.asyncio.Context(context).socket(peer)
    theirs = context.socket(kind)
    for sock in (ours, theirs):
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.RCVHWM, 0)
        sock.setsockopt(zmq.LINGER, 0)
    ours.bind("inproc://loop")
    theirs.connect("inproc://loop")
    try:
        yield theirs, ours
    finally:
        theirs.close()
        ours.close()
        context.term()


async def receive(sock: zmq.asyncio.Socket, count: int) -> list[bytes]:
    return [await sock.recv() for _ in range(count)]


@pytest.mark.usefixtures("no_time_bound")
async def test_zmq_takes_all_that_is_queued_in_one_wake_up() -> None:
    messages = [b"%d" % number for number in range(1000)]
    async with open_loop() as loop, zmq_pair(zmq.PUSH, zmq.PULL) as (theirs, ours):
        for message in messages:
            theirs.send(message)
        with counted_steps(loop) as steps:
            assert await loop.run_aio_coroutine(receive(ours, len(messages))) == messages
        assert steps.total <= 4


@pytest.mark.usefixtures("no_time_bound")
async def test_zmq_waiting_receiver_gets_each_burst() -> None:
    """Bursts into a receiver that already waits, so that every one needs the edge of its fd."""
    bursts, each = 100, 7
    async with open_loop() as loop, zmq_pair(zmq.PUSH, zmq.PULL) as (theirs, ours):
        for burst in range(bursts):
            task = loop.create_task(receive(ours, each))
            await trio.testing.wait_all_tasks_blocked()
            with counted_steps(loop) as steps:
                for number in range(each):
                    theirs.send(b"%d" % (burst * each + number))
                with trio.fail_after(5):
                    got = await loop.run_aio_future(task)
            assert got == [b"%d" % (burst * each + number) for number in range(each)]
            # Nothing like one step a message: pyzmq's `call_later(0)` stays inside the batch.
            assert steps.total <= each


async def test_zmq_concurrent_receivers_share_what_is_queued() -> None:
    async def receivers(sock: zmq.asyncio.Socket) -> list[bytes]:
        return await asyncio.gather(*(sock.recv() for _ in range(50)))

    async with open_loop() as loop, zmq_pair(zmq.PUSH, zmq.PULL) as (theirs, ours):
        task = loop.create_task(receivers(ours))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(50):
            theirs.send(b"%d" % number)
        with trio.fail_after(5):
            assert await loop.run_aio_future(task) == [b"%d" % number for number in range(50)]


async def test_zmq_echo_and_poller() -> None:
    async def echo(sock: zmq.asyncio.Socket) -> None:
        poller = zmq.asyncio.Poller()
        poller.register(sock, zmq.POLLIN)
        for _ in range(20):
            assert await poller.poll() == [(sock, zmq.POLLIN)]
            await sock.send(await sock.recv())

    async with open_loop() as loop, zmq_pair(zmq.PAIR, zmq.PAIR) as (theirs, ours):
        task = loop.create_task(echo(ours))
        for number in range(20):
            theirs.send(b"%d" % number)
            assert await trio.to_thread.run_sync(theirs.recv) == b"%d" % number
        await loop.run_aio_future(task)


# ---- what else libraries use ----


async def test_streams_over_a_socket() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def client() -> int:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            # More than the buffers hold: writers, pauses and resumes.
            writer.write(b"x" * size)
            writer.write_eof()
            received = len(await reader.read())
            writer.close()
            await writer.wait_closed()
        return received

    size = 5_000_000
    async with open_loop() as loop:
        assert await loop.run_aio_coroutine(client()) == size


async def test_subprocesses() -> None:
    async def run() -> tuple[bytes, int | None]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(5)",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate(b"shout")
        return out, process.returncode

    async with open_loop() as loop:
        assert await loop.run_aio_coroutine(run()) == (b"SHOUT", 5)
    gc.collect()


async def test_a_subprocess_that_outlives_its_caller_does_not_keep_the_loop_open() -> None:
    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
        )

    async def end(process: asyncio.subprocess.Process) -> None:
        process.kill()
        await process.wait()

    async with open_loop() as loop:
        process = await loop.run_aio_coroutine(start())
        task = loop.create_task(process.wait())
        await loop.synchronize()
        await loop.run_aio_coroutine(end(process))
        assert await loop.run_aio_future(task) == -9


async def test_loop_is_the_one_that_both_flavours_see() -> None:
    async def asyncio_side() -> object:
        return asyncio.get_event_loop()

    async with open_loop() as loop:
        assert isinstance(loop, WorkerLoop)
        assert asyncio.get_event_loop() is loop
        assert await loop.run_aio_coroutine(asyncio_side()) is loop
