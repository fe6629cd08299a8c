# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from trio_worker.quickstart.chat import HOST, Answer, Event, EventReader, chat, get, post

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: Any) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def delta(text: str, *, index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return event({"choices": [choice]})


def in_chunks(body: bytes, size: int) -> bytes:
    """Chunked transfer coding."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(f"{len(p):x}\r\n".encode() + p + b"\r\n" for p in parts) + b"0\r\n\r\n"


class Server:
    """Answers every request with the same bytes, cut into pieces, and remembers what it got."""

    def __init__(self, pieces: list[bytes], *, hold: bool = False) -> None:
        self.pieces = pieces
        self.hold = hold
        self.requests: list[bytes] = []
        self.left = trio.Event()

    async def handle(self, stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive_some()
        head, _, body = data.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(body) < length:
            body += await stream.receive_some()
        self.requests.append(head + b"\r\n\r\n" + body)
        for piece in self.pieces:
            await stream.send_all(piece)
        if self.hold:
            assert await stream.receive_some() == b""
            self.left.set()


@pytest.fixture
async def nobody_home(nursery: trio.Nursery) -> AsyncIterator[int]:
    """A port of ours at which nobody listens."""
    with trio.socket.socket() as taken:
        await taken.bind((HOST, 0))
        yield taken.getsockname()[1]


async def serve(nursery: trio.Nursery, server: Server) -> int:
    listeners = await nursery.start(partial(trio.serve_tcp, server.handle, 0, host=HOST))
    return int(listeners[0].socket.getsockname()[1])


def test_events_however_they_are_cut() -> None:
    stream = (
        b": keep-alive\n\n:\n\n"
        b"data: one\r\n\r\n"
        + "data: zwölf\ndata:more\n\n".encode()
        + b"event: error\n: it broke\ndata: x\n\ndata: [DONE]\n\nunfinished"
    )
    expected = [
        Event(comment="keep-alive"),
        Event(data="one"),
        Event(data="zwölf\nmore"),
        Event(kind="error", data="x", comment="it broke"),
        Event(data="[DONE]"),
    ]
    for size in range(1, len(stream)):
        reader = EventReader()
        found = []
        for start in range(0, len(stream), size):
            found += reader.feed(stream[start : start + size])
        assert found == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
async def test_stream_is_read_exactly(nursery: trio.Nursery, size: int) -> None:
    body = (
        delta("Wo ")
        + delta("ein Weg", index=1)
        + delta("ist — 川")
        + delta("", finish="stop")
        + delta("", index=1, finish="length")
        + event({"choices": [], "usage": {"completion_tokens": 3}})
        + b"data: [DONE]\n\n"
    )
    port = await serve(nursery, Server([HEAD, in_chunks(body, size)]))
    shown: list[str] = []
    answer = await chat(port, "m", "Hi", on_text=shown.append)
    assert answer.status == 200
    assert answer.texts == {0: "Wo ist — 川", 1: "ein Weg"}
    assert shown == ["Wo ", "ein Weg", "ist — 川"]
    assert len(answer.arrivals) == 3
    assert answer.finish_reasons == {0: "stop", 1: "length"}
    assert answer.usage == {"completion_tokens": 3}
    assert answer.done
    assert answer.errors == []
    nursery.cancel_scope.cancel()


async def test_request_is_what_was_asked(nursery: trio.Nursery) -> None:
    server = Server([b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n", b'{"choices":', b"[]}"])
    port = await serve(nursery, server)
    answer = await chat(port, "m", "Grüße", stream=False, n=2, headers={"X-Test": "1"})
    assert answer.body == {"choices": []}
    assert answer.done
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"X-Test: 1" in head
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Grüße"}],
        "stream": False,
        "n": 2,
    }
    nursery.cancel_scope.cancel()


async def test_error_event_after_part_of_the_answer(nursery: trio.Nursery) -> None:
    body = delta("so far") + b"event: error\n: worker gone\n\n" + b"data: [DONE]\n\n"
    port = await serve(nursery, Server([HEAD, in_chunks(body, 9)]))
    answer = await chat(port, "m", "Hi")
    assert answer.text == "so far"
    assert answer.errors == ["worker gone"]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([], "closed before an answer"),
        ([HEAD, in_chunks(delta("a"), 100)[:-5]], "closed before the end of the body"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"], "closed before the end of the body"),
        ([b'HTTP/1.1 404 No\r\ncontent-length: 11\r\n\r\n"not there"'], "not there"),
    ],
)
async def test_broken_answers_are_errors(
    nursery: trio.Nursery, pieces: list[bytes], error: str
) -> None:
    answer = await chat(await serve(nursery, Server(pieces)), "m", "Hi")
    assert error in answer.errors
    assert not answer.done
    nursery.cancel_scope.cancel()


async def test_cancelling_leaves_and_keeps_what_came(nursery: trio.Nursery) -> None:
    server = Server([HEAD, in_chunks(delta("before"), 100)[:-5]], hold=True)
    port = await serve(nursery, server)
    answer = Answer()
    with trio.CancelScope() as scope:
        payload = {"model": "m", "stream": True}
        await post(
            port, "/v1/completions", payload, answer=answer, on_text=lambda _: scope.cancel()
        )
    assert scope.cancelled_caught
    assert answer.text == "before"
    await server.left.wait()
    nursery.cancel_scope.cancel()


async def test_get(nursery: trio.Nursery) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    port = await serve(nursery, Server([head, in_chunks(b"hello", 2)]))
    assert await get(port, "/v1/models") == (200, b"hello")
    nursery.cancel_scope.cancel()


async def test_nobody_home(nobody_home: int) -> None:
    status, reason = await get(nobody_home, "/")
    assert status == 0
    assert reason
    answer = await chat(nobody_home, "m", "Hi")
    assert answer.status == 0
    assert len(answer.errors) == 1
