# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Engine routes and control endpoints of an LLM handler (C42-C47, B15), without a runtime."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
import trio_asyncio

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from compat.control_calls import ControlCalls
from compat.feeders import Feeders
from compat.loop import WorkerLoop, open_loop
from trio_worker.branch import open_branch
from trio_worker.roles.control import TURN_S
from trio_worker.roles.decode import DecodeRequests

# Not by an import statement, which would come before the one that pays for it.
io: Any = importlib.import_module("sglang.srt.managers.io_struct")

ENDPOINT = object()


class FakeManager:
    """Pauses after `pause_s`; scales, flushes and loads as told."""

    def __init__(self) -> None:
        self.is_pause = False
        self.pause_s = 0.0
        self.scaling = 0
        self.most_at_once = 0
        self.rid_to_state: dict[str, Any] = {}
        self.server_args = SimpleNamespace(elastic_ep_backend="x", hicache_storage_backend=None)

    async def pause_generation(self, obj: io.PauseGenerationReqInput) -> None:
        await asyncio.sleep(self.pause_s)
        self.is_pause = True

    async def continue_generation(self, obj: io.ContinueGenerationReqInput) -> None:
        self.is_pause = False

    async def release_memory_occupation(
        self, obj: io.ReleaseMemoryOccupationReqInput, request: Any = None
    ) -> None:
        pass

    async def resume_memory_occupation(
        self, obj: io.ResumeMemoryOccupationReqInput, request: Any = None
    ) -> None:
        pass

    async def flush_cache(self) -> Any:
        await asyncio.sleep(1)
        return SimpleNamespace(success=True)

    async def scale_elastic_ep(self, obj: Any) -> Any:
        self.scaling += 1
        self.most_at_once = max(self.most_at_once, self.scaling)
        await asyncio.sleep(1)
        self.scaling -= 1
        return SimpleNamespace(success=True, message="", old_ep_size=1, new_ep_size=obj.new_ep_size)

    async def _apply_pause_continue_broadcast(self, obj: Any) -> None:
        self.is_pause = obj.is_pause


class FakeEngine:
    """With one method of the kind that SGLang offers to callers who have no loop."""

    def __init__(self, loop: WorkerLoop) -> None:
        self.loop: Any = loop
        self.tokenizer_manager = FakeManager()

    def count(self, up_to: int) -> int:
        async def work() -> int:
            await asyncio.sleep(0)
            return up_to

        result: int = self.loop.run_until_complete(work())
        return result


class FakeRuntime:
    """Both of Dynamo's and of ours."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[Any], Any]] = {}
        self.registration_refused = False
        self.shown: list[bool] = []
        self.served = True

    def register_engine_route(self, path: str, handler: Callable[[Any], Any]) -> None:
        self.routes[path] = handler

    def serves(self, endpoint: Any) -> bool:
        assert endpoint is ENDPOINT
        return self.served

    async def advertise(self, endpoint: Any, wanted: bool) -> None:
        assert endpoint is ENDPOINT
        if not self.shown or self.shown[-1] != wanted:
            self.shown.append(wanted)


class Rig:
    def __init__(self, handler: Any, runtime: FakeRuntime, engine: FakeEngine) -> None:
        self.handler = handler
        self.runtime = runtime
        self.engine = engine
        self.manager = engine.tokenizer_manager

    async def call(self, path: str, body: Any = None) -> Any:
        """Trio. One engine route, as the runtime calls it."""
        return await trio_asyncio.aio_as_trio(self.runtime.routes[path])(body or {})

    async def ask(self, name: str, request: Any = None) -> list[Any]:
        """Trio. One control endpoint, pulled as the runtime does."""

        async def read() -> list[Any]:
            return [answer async for answer in getattr(self.handler, name)(request)]

        return list(await trio_asyncio.aio_as_trio(read)())


def report(branch: str, error: BaseException) -> None:
    raise AssertionError(f"{branch}: {error!r}")


@asynccontextmanager
async def open_rig(*routes: str) -> AsyncIterator[Rig]:
    async with open_loop() as loop, open_branch("services", report) as services:
        engine, runtime = FakeEngine(loop), FakeRuntime()
        handler: Any = DecodeRequests.__new__(DecodeRequests)
        handler.engine = engine
        handler.config = SimpleNamespace(dynamo_args=SimpleNamespace(engine_routes=list(routes)))
        handler.generate_endpoint = ENDPOINT
        handler._scale_ep_lock = asyncio.Lock()
        handler._init_lora_tracking()
        worker: Any = SimpleNamespace(
            runtime=runtime,
            engine=SimpleNamespace(control_calls=ControlCalls(Feeders(loop))),
            services=services,
        )
        handler.attach(worker)
        handler.register_engine_routes(runtime)
        handler.follow_shared_pause_state()
        yield Rig(handler, runtime, engine)
        await services.close()
        await worker.engine.control_calls.close(1.0)


async def test_the_incumbents_routes_are_there() -> None:
    async with open_rig("loads=count:engine") as rig:
        weights = [
            f"update_{what}"
            for what in (
                "weights_from_disk",
                "weights_from_tensor",
                "weights_from_distributed",
                "weights_from_ipc",
                "weight_version",
            )
        ]
        names = [*weights, "start_profile", "stop_profile", "scale_elastic_ep"]
        assert set(rig.runtime.routes) == {
            "update/model_taints",
            *(f"control/{name}" for name in (*names, "is_scaling_elastic_ep")),
            *("pause_generation", "continue_generation"),
            *("release_memory_occupation", "resume_memory_occupation"),
            "loads",
        }


async def test_a_route_that_hides_another_is_refused() -> None:
    refusal = pytest.RaisesExc(ValueError, match="collides with a built-in route")
    with pytest.RaisesGroup(refusal, flatten_subgroups=True):
        async with open_rig("control/start_profile=count:engine"):
            pass


async def test_discovery_has_followed_when_a_pause_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_rig() as rig:
        assert await rig.call("pause_generation") == {"status": "ok"}
        assert rig.runtime.shown == [False]
        await rig.call("continue_generation")
        assert rig.runtime.shown == [False, True]


async def test_a_pause_goes_on_when_its_caller_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_rig() as rig:
        rig.manager.pause_s = 5.0
        with trio.move_on_after(1):
            await rig.call("pause_generation")
        # The next one has to wait: nobody has broken in.
        began = trio.current_time()
        await rig.call("continue_generation")
        assert trio.current_time() - began == pytest.approx(4.0)
        assert rig.runtime.shown == [False, True]


async def test_a_route_that_hangs_does_not_hang_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_rig() as rig, trio.open_nursery() as nursery:
        rig.manager.pause_s = float("inf")
        nursery.start_soon(rig.call, "pause_generation")
        await trio.sleep(1)
        began = trio.current_time()
        with pytest.raises(Exception, match="another control call has been running for 30 s"):
            await rig.call("continue_generation")
        assert trio.current_time() - began == pytest.approx(TURN_S)
        (answer,) = await rig.ask("clear_kv_blocks")
        assert answer["status"] == "error"
        assert "another control call" in answer["message"]
        # Nor the broadcast of somebody else's pause.
        broadcast = SimpleNamespace(is_pause=True)
        apply = rig.manager._apply_pause_continue_broadcast
        await trio_asyncio.aio_as_trio(apply)(broadcast)
        await trio.sleep(0.1)
        assert rig.runtime.shown == [False]
        nursery.cancel_scope.cancel()


async def test_discovery_follows_a_route_that_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_rig() as rig:

        async def pause_and_fail(obj: Any) -> None:
            rig.manager.is_pause = True
            raise RuntimeError("half done")

        route = rig.handler._wrap_engine_route(pause_and_fail)
        with pytest.raises(RuntimeError, match="half done"):
            await trio_asyncio.aio_as_trio(route)({})
        assert rig.runtime.shown == [False]


async def test_nothing_is_shown_before_it_is_served(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_rig() as rig:
        rig.runtime.served = False
        await rig.call("continue_generation")
        assert rig.runtime.shown == []


async def test_a_consumer_that_goes_leaves_no_lock_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_rig() as rig:
        answers = rig.handler.clear_kv_blocks(None)
        first = await trio_asyncio.aio_as_trio(answers.__anext__)()
        assert first["status"] == "success"
        # Not closed, and not collected either.
        began = trio.current_time()
        await rig.call("pause_generation")
        assert trio.current_time() == began
        del answers


async def test_a_blocking_method_of_the_engine_may_use_our_loop() -> None:
    async with open_rig("loads=count:engine") as rig:
        loop = rig.engine.loop
        assert await rig.call("loads", {"up_to": 7}) == {"result": 7}
        assert rig.engine.loop is loop


async def test_one_scaling_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    async with open_rig() as rig, trio.open_nursery() as nursery:
        for size in (2, 3, 4):
            nursery.start_soon(rig.call, "control/scale_elastic_ep", {"new_ep_size": size})
        # One that leaves does not let the next one in early.
        with trio.move_on_after(0.5):
            await rig.call("control/scale_elastic_ep", {"new_ep_size": 5})
    assert rig.manager.most_at_once == 1


async def test_loading_is_refused_on_the_way_out() -> None:
    async with open_rig() as rig:
        rig.runtime.registration_refused = True
        (answer,) = await rig.ask("load_lora", {"lora_name": "a"})
        assert answer == {"status": "error", "message": "the worker is shutting down"}
