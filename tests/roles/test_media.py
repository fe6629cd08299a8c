# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.roles.media: the incumbent's answers, one generation at a time, nobody held by it."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
import numpy as np
from dynamo.common.storage import get_fs
from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.request_handlers import (
    ImageDiffusionWorkerHandler,
    VideoGenerationWorkerHandler,
)

from compat import generator as generator_module
from compat.generator import AT_WORK, GeneratorHost
from compat.loop import WorkerLoop
from compat.permanent_thread import PermanentThread
from tests.fakes.context import FakeContext
from tests.fakes.generator import FakeGenerator
from tests.fakes.journal import Journal
from tests.roles.rig import Call, Rig, config, incumbents, open_rig
from trio_worker.roles.media import ImageRequests, VideoRequests

# These threads are real, so the clock is too: tests wait for events, never for time.

IMAGE = {"prompt": "a cat", "model": "m", "response_format": "b64_json", "size": "8x8"}
VIDEO = {
    "prompt": "a cat",
    "model": "m",
    "response_format": "b64_json",
    "size": "16x16",
    "seconds": 1,
    "nvext": {"fps": 2, "num_inference_steps": 1, "seed": 3},
}
FAMILIES = [(ImageRequests, IMAGE), (VideoRequests, VIDEO)]
GENEROUS_S = 30.0


class Studio:
    """Requests of one media handler around a fake generator."""

    def __init__(self, rig: Rig, fake: FakeGenerator, host: GeneratorHost) -> None:
        self.rig = rig
        self.fake = fake
        self.host = host

    async def until(self, condition: Callable[[], bool]) -> None:
        """Trio. Until another thread has done something."""
        with trio.fail_after(GENEROUS_S):
            while not condition():
                await trio.sleep(0.001)

    async def over(self, *calls: Call) -> None:
        """Trio. Until all of `calls` have ended."""
        for call in calls:
            await call.finish()


@asynccontextmanager
async def open_studio(
    handler_class: type, fake: FakeGenerator, fs_url: str = "file:///tmp"
) -> AsyncIterator[Studio]:
    hosts: list[GeneratorHost] = []
    filesystem = await trio.to_thread.run_sync(filesystem_of, fs_url)

    def make(loop: WorkerLoop, _journal: Journal) -> tuple[Any, Any]:
        host = GeneratorHost(fake, loop, PermanentThread("test-generator"))
        hosts.append(host)
        handler = handler_class(fake, config(), publisher=None, fs=filesystem)
        handler.attach_host(host)
        return None, handler

    async with open_rig(make) as rig:
        try:
            yield Studio(rig, fake, hosts[0])
        finally:
            fake.release(100)
            hosts[0].side.close()


def settled(answer: Any) -> Any:
    """Without what differs from run to run."""
    changing = ("created", "inference_time_s")
    return {name: value for name, value in answer.items() if name not in changing}


def filesystem_of(url: str) -> Any:
    """In a thread: fsspec makes a loop of its own, which Trio's thread can't have."""
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    return get_fs(url)


def incumbent_of(handler_class: type, fake: FakeGenerator) -> Any:
    kind = (
        ImageDiffusionWorkerHandler
        if handler_class is ImageRequests
        else VideoGenerationWorkerHandler
    )
    return kind(fake, config())


def frames(count: int) -> SimpleNamespace:
    return SimpleNamespace(frames=[np.full((16, 16, 3), 9 * i, np.uint8) for i in range(count)])


def failing(error: Exception) -> Callable[[Any], Any]:
    def fail(_arguments: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("handler_class", "request_", "result"),
    [
        (ImageRequests, IMAGE, lambda _arguments: frames(2)),
        (ImageRequests, IMAGE, lambda _arguments: [SimpleNamespace(frames=[b"raw"])]),
        (ImageRequests, {**IMAGE, "nvext": {"num_inference_steps": 99, "seed": 5}}, None),
        (ImageRequests, {**IMAGE, "size": "huge"}, None),
        (ImageRequests, {**IMAGE, "input_reference": " "}, None),
        (ImageRequests, {**IMAGE, "input_reference": "data:,x"}, None),
        (ImageRequests, {"model": "m"}, None),
        (ImageRequests, IMAGE, lambda _arguments: None),
        (ImageRequests, IMAGE, lambda _arguments: SimpleNamespace(frames=["?"])),
        (ImageRequests, IMAGE, failing(OSError("device lost"))),
        # Where the encoder is missing, both say so.
        (VideoRequests, VIDEO, lambda _arguments: frames(2)),
        (VideoRequests, {**VIDEO, "size": "huge"}, None),
        (VideoRequests, {**VIDEO, "output_format": "gif"}, None),
        (VideoRequests, {"model": "m"}, None),
        (VideoRequests, VIDEO, lambda _arguments: None),
        (VideoRequests, VIDEO, lambda _arguments: SimpleNamespace(frames=[])),
        (VideoRequests, VIDEO, failing(OSError("device lost"))),
    ],
)
async def test_answers_and_errors_are_the_incumbents(
    handler_class: type, request_: dict[str, Any], result: Any
) -> None:
    fake = FakeGenerator()
    if result is not None:
        fake.result = result
    outcomes: list[Any] = []
    async with open_studio(handler_class, fake) as studio:
        incumbent = incumbent_of(handler_class, fake)

        async def theirs() -> Any:
            return await incumbents(incumbent, request_, FakeContext(studio.rig.journal))

        async def ours() -> Any:
            return await studio.rig.answer(request_)

        for ask in (theirs, ours):
            try:
                outcomes.append(settled(await ask()))
            except Exception as error:
                outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    seen = [{k: v for k, v in one.items() if k != "seed"} for one in fake.arguments]
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


async def test_a_video_is_encoded_off_the_worker_s_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the encoder needs: between two awaits it runs on another thread than Trio's."""
    threads: list[int] = []

    async def encode(_self: Any, _frames: Any, _fps: int) -> bytes:
        threads.append(threading.get_ident())
        return b"video"

    def to_text(_self: Any, data: bytes) -> str:
        threads.append(threading.get_ident())
        return base64.b64encode(data).decode()

    monkeypatch.setattr(VideoGenerationWorkerHandler, "_frames_to_video", encode)
    monkeypatch.setattr(VideoGenerationWorkerHandler, "_encode_base64", to_text)
    fake = FakeGenerator()
    async with open_studio(VideoRequests, fake) as studio:
        answer = await studio.rig.answer(VIDEO)
    assert base64.b64decode(answer["data"][0]["b64_json"]) == b"video"
    assert len(threads) == 2
    assert threading.get_ident() not in {*threads, *fake.threads}
    assert fake.arguments[0]["num_frames"] == 2


async def test_what_is_stored_is_reached_by_its_url(tmp_path: Any) -> None:
    fake = FakeGenerator()
    url = f"file://{tmp_path}"
    async with open_studio(ImageRequests, fake, url) as studio:
        answer = await studio.rig.answer({**IMAGE, "response_format": "url", "user": "u"})
    (stored,) = tmp_path.rglob("*.png")
    assert stored.read_bytes() == b"png"
    assert answer["data"][0]["url"].endswith(str(stored.relative_to(tmp_path)))


@pytest.mark.parametrize(("handler_class", "request_"), FAMILIES)
async def test_b17_generations_are_one_at_a_time(
    handler_class: type, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VideoGenerationWorkerHandler, "_frames_to_video", no_video)
    fake = FakeGenerator(held=True)
    async with open_studio(handler_class, fake) as studio:
        calls = [studio.rig.call(request_) for _ in range(3 * AT_WORK)]
        for done in range(len(calls)):
            await studio.until(lambda done=done: len(fake.arguments) == done + 1)
            assert fake.inside == 1
            fake.release()
        await studio.over(*calls)
    assert fake.most_inside == 1
    assert len(fake.threads) == 1
    assert [len(call.answers) for call in calls] == [1] * len(calls)
    assert studio.host.left == 0


@pytest.mark.parametrize(("handler_class", "request_"), FAMILIES)
async def test_b18_the_next_generation_waits_for_the_thread_not_for_its_request(
    handler_class: type, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VideoGenerationWorkerHandler, "_frames_to_video", no_video)
    fake = FakeGenerator(held=True)
    async with open_studio(handler_class, fake) as studio:
        first = studio.rig.call(request_)
        await studio.until(lambda: fake.inside == 1)
        waiting, next_one = studio.rig.call(request_), studio.rig.call(request_)
        first.context.stop()
        waiting.context.stop()
        await studio.over(first, waiting)
        for call in (first, waiting):
            assert (call.answers, call.error) == ([], None)
        await studio.until(lambda: studio.host.left == 1)
        assert (fake.inside, fake.most_inside) == (1, 1)
        assert studio.host.generating
        assert len(studio.rig.feeders) == 1  # the next one's; nobody is held
        fake.release()
        await studio.until(lambda: len(fake.arguments) == 2)
        fake.release()
        await studio.over(next_one)
        assert len(next_one.answers) == 1
    assert fake.most_inside == 1
    assert len(fake.arguments) == 2  # the one that left before its turn never had it
    assert studio.host.statistics() == {"generating": 0, "generated": 2, "left": 1}
    assert studio.rig.live.drains_timed_out == 0


@pytest.mark.parametrize(("handler_class", "request_"), FAMILIES)
async def test_a_shutdown_migrates_and_does_not_wait_for_the_generation(
    handler_class: type, request_: dict[str, Any]
) -> None:
    fake = FakeGenerator(held=True)
    async with open_studio(handler_class, fake) as studio:
        calls = [studio.rig.call(request_) for _ in range(AT_WORK + 2)]
        await studio.until(lambda: fake.inside == 1)
        studio.rig.live.migrate_all()
        with trio.fail_after(GENEROUS_S):
            await studio.rig.live.wait_all_ended()
        await studio.over(*calls)
        assert all(isinstance(call.error, EngineShutdown) for call in calls)
        assert [call.answers for call in calls] == [[]] * len(calls)  # no in-band failure
        assert fake.inside == 1
        # Those that wait for their turn give it up over there, a moment later.
        await studio.until(lambda: not asyncio.all_tasks(studio.host.side._loop))
        assert studio.host.left == 1
    assert len(fake.arguments) == 1


@pytest.mark.parametrize(("handler_class", "request_"), FAMILIES)
async def test_b21_requests_of_one_trace_are_all_served(
    handler_class: type, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VideoGenerationWorkerHandler, "_frames_to_video", no_video)
    async with open_studio(handler_class, FakeGenerator()) as studio:
        calls = [studio.rig.call(request_, trace_id="one-trace") for _ in range(3)]
        await studio.over(*calls)
        assert [(len(call.answers), call.error) for call in calls] == [(1, None)] * 3


async def no_video(_self: Any, _frames: Any, _fps: int) -> bytes:
    return b"video"


# ---- the host ----


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Instead of killing what descends from the tests' process."""
    killed: list[None] = []

    def kill() -> list[int]:
        killed.append(None)
        return []

    monkeypatch.setattr(generator_module, "kill_descendants", kill)
    return killed


async def test_an_idle_generator_is_shut_down_by_sglang(kills: list[None]) -> None:
    fake = FakeGenerator()
    async with open_studio(ImageRequests, fake) as studio:
        with trio.fail_after(GENEROUS_S):
            await studio.host.close(10)
        assert studio.host.closed
    assert (fake.shutdowns, kills) == (1, [])


async def test_a_busy_generator_is_killed_and_not_waited_for(kills: list[None]) -> None:
    fake = FakeGenerator(held=True)
    async with open_studio(ImageRequests, fake) as studio:
        call = studio.rig.call(IMAGE)
        await studio.until(lambda: fake.inside == 1)
        call.context.stop()
        await studio.over(call)
        with trio.fail_after(GENEROUS_S):
            await studio.host.close(10)
        assert studio.host.closed
        assert fake.inside == 1
    assert (fake.shutdowns, len(kills)) == (0, 1)


async def test_a_shutdown_that_fails_or_hangs_ends_in_a_kill(kills: list[None]) -> None:
    fake = FakeGenerator()
    release = threading.Event()

    def hang() -> None:
        release.wait(GENEROUS_S)

    fake.shutdown = hang  # type: ignore[method-assign]
    async with open_studio(ImageRequests, fake) as studio:
        with trio.fail_after(GENEROUS_S):
            await studio.host.close(0.2)
        release.set()
        assert studio.host.closed
    assert len(kills) == 1

    broken = FakeGenerator()
    broken.shutdown = lambda: failing(OSError("no socket"))(None)  # type: ignore[method-assign]
    async with open_studio(ImageRequests, broken) as studio:
        await studio.host.close(10)
        assert studio.host.closed
    assert len(kills) == 2


async def test_a_worker_of_the_generator_that_exits_is_its_death() -> None:
    process = await trio.lowlevel.open_process(["sleep", "60"])
    fake = FakeGenerator(pids=(process.pid,))
    async with open_studio(ImageRequests, fake) as studio:
        await studio.host.adopt()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(studio.host.watch_children)
            process.kill()
            with trio.fail_after(GENEROUS_S):
                await studio.host.died.wait()
            nursery.cancel_scope.cancel()
        assert str(process.pid) in studio.host.death
    await process.wait()
