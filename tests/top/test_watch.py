# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.top.watch: a worker that answers, goes away, comes back as another."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
import trio
from trio.testing import MockClock

from trio_worker.top.watch import ANSWER_S, Watched, base_url

from .views import request, view

Answer = Callable[[httpx.Request], httpx.Response]


def says(body: object, status: int = 200) -> Answer:
    return lambda _request: httpx.Response(status, json=body)


def refuses(asked: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused", request=asked)


class Server:
    """Plays a worker's status server."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def client(self) -> httpx.AsyncClient:
        def handle(asked: httpx.Request) -> httpx.Response:
            self.asked.append(f"{asked.method} {asked.url}")
            return self.answer(asked)

        return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://a:9090", "http://a:9090"),
        ("http://a:9090/", "http://a:9090"),
        ("https://a:9090", "https://a:9090"),
        ("a.b:9090", "http://a.b:9090"),
        ("[::1]:9090", "http://[::1]:9090"),
        ("9090", "http://localhost:9090"),
        (":9090", "http://localhost:9090"),
    ],
)
def test_urls(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["", "a", "http://a", "ftp://a:9090", "a:port", "http://:9090"])
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(ValueError, match=r"not http|Port"):
        base_url(text)


async def test_a_worker_that_answers() -> None:
    server = Server(says(view(request(1))))
    async with server.client() as client:
        one = Watched("http://a:1", client)
        await one.look()
    assert one.view == view(request(1))
    assert one.trouble == ""
    assert server.asked == ["POST http://a:1/engine/inside"]


async def test_tokens_a_second(autojump_clock: MockClock) -> None:
    server = Server(says(view(request(1, tokens=20), request(2, tokens=50))))
    async with server.client() as client:
        one = Watched("http://a:1", client)
        await one.look()
        assert one.tokens_per_s is None
        await trio.sleep(2.0)
        # The second has ended, a third has come.
        server.answer = says(view(request(1, tokens=60), request(3, tokens=10)))
        await one.look()
    assert one.tokens_per_s == pytest.approx((40 + 10) / 2.0)


async def test_a_worker_that_goes_away_and_comes_back(autojump_clock: MockClock) -> None:
    server = Server(says(view(pid=7)))
    async with server.client() as client:
        one = Watched("http://a:1", client)
        await one.look()
        heard = trio.current_time()
        await trio.sleep(1.0)
        server.answer = refuses
        for _ in range(3):
            await one.look()
            await trio.sleep(1.0)
        assert one.trouble == "ConnectError: Connection refused"
        assert one.silent_since == heard
        assert one.view == view(pid=7)  # what was known is still shown
        server.answer = says(view(pid=8))
        await one.look()
    assert (one.trouble, one.silent_since, one.restarts) == ("", None, 1)


async def test_a_worker_that_hangs_is_given_up(autojump_clock: MockClock) -> None:
    async def hang(_asked: httpx.Request) -> httpx.Response:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async with httpx.AsyncClient(transport=httpx.MockTransport(hang)) as client:
        one = Watched("http://a:1", client)
        began = trio.current_time()
        await one.look()
        assert trio.current_time() == began + ANSWER_S
    assert one.trouble == "no answer for 2 s"


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (says({}, 404), "status 404"),
        (says({"fine": True}), "ValueError: not a trio-worker"),
        (says([1]), "ValueError: not a trio-worker"),
        (lambda _asked: httpx.Response(200, text="<html>"), "JSONDecodeError"),
    ],
)
async def test_whatever_else_answers_there(answer: Answer, trouble: str) -> None:
    async with Server(answer).client() as client:
        one = Watched("http://a:1", client)
        await one.look()
    assert one.trouble.startswith(trouble)
    assert one.view is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says({"path": "flight.json"}), "flight recorder: flight.json"),
        (says({"path": None}), "flight recorder: off"),
        (says({}, 500), "flight recorder: status 500"),
        (refuses, "flight recorder: ConnectError: Connection refused"),
    ],
)
async def test_flight_recorders_are_written_when_asked(answer: Answer, said: str) -> None:
    server = Server(answer)
    async with server.client() as client:
        one = Watched("http://a:1", client)
        await one.write_flight()
    assert one.said == said
    assert server.asked == ["POST http://a:1/engine/flight"]
