# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A streaming chat client on Trio, small enough to know exactly what came over the wire."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

HOST = "127.0.0.1"


@dataclass(slots=True)
class Answer:
    """What one request got, as far as it got."""

    status: int = 0
    """HTTP status; 0: no answer."""
    texts: dict[int, str] = field(default_factory=dict)
    """Text of each choice so far."""
    finish_reasons: dict[int, str] = field(default_factory=dict)
    arrivals: list[float] = field(default_factory=list)
    """Trio time, seconds, of each event that carried text."""
    errors: list[str] = field(default_factory=list)
    """Error events and error bodies."""
    usage: dict[str, Any] | None = None
    logprobs: list[Any] = field(default_factory=list)
    done: bool = False
    """The stream ended with its terminal event."""
    body: Any = None
    """The whole body of an answer that was not streamed."""

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.texts.get(0, "")


@dataclass(slots=True)
class Event:
    """One server-sent event."""

    kind: str = ""
    data: str = ""
    comment: str = ""
    """Comments of a plain event keep the connection alive; those of an error event explain it."""


class EventReader:
    """Server-sent events out of bytes, however they are cut; pure."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = Event()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes: an empty line ends one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            text = line.rstrip(b"\r").decode()
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not text:
                if self._event != Event():
                    found.append(self._event)
                    self._event = Event()
            elif name == "data":
                self._event.data += ("\n" if self._event.data else "") + value
            elif name == "event":
                self._event.kind = value
            elif not name:
                self._event.comment += value
        return found


class _Body:
    """The body of one HTTP/1.1 response with chunked or counted length; pure."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._chunked = headers.get("transfer-encoding", "") == "chunked"
        length = headers.get("content-length")
        self._left = int(length) if length is not None else None
        self._buffer = b""
        self._in_chunk = 0
        self.complete = self._left == 0

    def feed(self, data: bytes) -> bytes:
        """What `data` adds to the body."""
        if not self._chunked:
            if self._left is not None:
                self._left -= len(data)
                self.complete = self._left <= 0
            return data
        self._buffer += data
        out = b""
        while not self.complete:
            if self._in_chunk:
                if len(self._buffer) < self._in_chunk:
                    break
                out += self._buffer[: self._in_chunk - 2]
                self._buffer = self._buffer[self._in_chunk :]
                self._in_chunk = 0
            head, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                break
            self._buffer = rest
            size = int(head.split(b";")[0], 16)
            if size == 0:
                self.complete = True
            self._in_chunk = size + 2
        return out


async def post(
    port: int,
    path: str,
    payload: dict[str, Any],
    *,
    answer: Answer | None = None,
    on_text: Callable[[str], None] | None = None,
    before_read: Callable[[], Awaitable[None]] | None = None,
    receive_buffer: int | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Trio. One POST; cancelling it closes the socket, as a client that leaves does.

    Fills `answer` while it comes, so that whoever cancels has what came. Errors of the network
    end up in `Answer.errors`; nothing is raised for a bad status. A client is as slow as
    `before_read` (Trio) and `receive_buffer` (bytes) make it.
    """
    answer = Answer() if answer is None else answer
    body = json.dumps(payload).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
        f"{more}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        raw = trio.socket.socket()
        if receive_buffer is not None:
            raw.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
        with raw:
            await raw.connect((HOST, port))
            stream = trio.SocketStream(raw)
            await stream.send_all(head.encode() + body)
            await _read(stream, answer, on_text, before_read)
    except OSError as error:
        answer.errors.append(repr(error))
    return answer


async def _read(
    stream: trio.SocketStream,
    answer: Answer,
    on_text: Callable[[str], None] | None,
    before_read: Callable[[], Awaitable[None]] | None,
) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        received = await stream.receive_some()
        if not received:
            answer.errors.append("closed before an answer")
            return
        data += received
    raw_head, _, rest = data.partition(b"\r\n\r\n")
    lines = raw_head.decode().split("\r\n")
    answer.status = int(lines[0].split()[1])
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    body = _Body(headers)
    streamed = headers.get("content-type", "").startswith("text/event-stream")
    events, whole = EventReader(), b""
    while True:
        part = body.feed(rest)
        if streamed:
            for event in events.feed(part):
                _take_event(event, answer, on_text)
        else:
            whole += part
        if body.complete:
            break
        if before_read is not None:
            await before_read()
        rest = await stream.receive_some()
        if not rest:
            if not streamed and body._left is None:
                break
            answer.errors.append("closed before the end of the body")
            return
    if not streamed:
        _take_whole(whole, answer)


def _take_event(event: Event, answer: Answer, on_text: Callable[[str], None] | None) -> None:
    if event.kind == "error":
        answer.errors.append(event.comment or event.data or "error event")
        return
    if event.data == "[DONE]":
        answer.done = True
        return
    if not event.data:
        return
    chunk = json.loads(event.data)
    if "error" in chunk:
        answer.errors.append(event.data)
    if chunk.get("usage"):
        answer.usage = chunk["usage"]
    for choice in chunk.get("choices", ()):
        index = choice["index"]
        piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        if piece:
            answer.arrivals.append(trio.current_time())
            answer.texts[index] = answer.texts.get(index, "") + piece
            if on_text is not None:
                on_text(piece)
        if choice.get("logprobs"):
            answer.logprobs.append(choice["logprobs"])
        if choice.get("finish_reason"):
            answer.finish_reasons[index] = choice["finish_reason"]


def _take_whole(whole: bytes, answer: Answer) -> None:
    try:
        answer.body = json.loads(whole)
    except ValueError:
        answer.body = whole.decode(errors="replace")
    if answer.status != 200:
        answer.errors.append(str(answer.body))
        return
    answer.done = True
    if not isinstance(answer.body, dict):
        return  # a ranking, say
    answer.usage = answer.body.get("usage")
    for choice in answer.body.get("choices", ()):
        message = choice.get("message")
        answer.texts[choice["index"]] = message["content"] if message else choice["text"]
        answer.finish_reasons[choice["index"]] = choice["finish_reason"]


async def chat(port: int, model: str, text: str, **options: Any) -> Answer:
    """Trio. One chat completion of a user message; `options` are OpenAI's and `post`'s."""
    ours = {
        name: options.pop(name)
        for name in ("answer", "on_text", "before_read", "receive_buffer", "headers")
        if name in options
    }
    payload = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        **options,
    }
    return await post(port, "/v1/chat/completions", payload, **ours)


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Trio. One GET: (status, body); (0, reason) when nobody answers."""
    try:
        stream = await trio.open_tcp_stream(HOST, port)
        async with stream:
            await stream.send_all(
                f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
            )
            data = b""
            async for part in stream:
                data += part
    except OSError as error:
        return 0, str(error).encode()
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    if not lines[0]:
        return 0, b"no answer"
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    return int(lines[0].split()[1]), _Body(headers).feed(rest)


def metric_sum(text: str, name: str, **labels: str) -> float:
    """The sum over the series of `name` with all of `labels` in a Prometheus text; pure."""
    total = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(
            f'{label}="{wanted}"' in series for label, wanted in labels.items()
        ):
            total += float(value)
    return total
