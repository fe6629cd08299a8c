# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A fake SGLang engine that is faithful by construction.

Requests run through SGLang's own code: ``Engine.async_generate``,
``TokenizerManager.generate_request``, ``_handle_batch_request``, ``_stream_one_response``,
``_handle_batch_output``, ``abort_request``, ``_handle_abort_req`` and
``_release_req_states_on_failure`` are the installed ones, fed with real messages. Replaced are
the model configuration, the tokenizer, the two sockets and the scheduler process behind them
(`scheduler`), which makes every gap that a cancellation can fall into a number in a script.

The tokenizer manager's own constructor runs, so a field that SGLang adds is there as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
from sglang.srt.runtime_context import assert_published, publish
from sglang.srt.server_args import ServerArgs

from .journal import Journal
from .scheduler import FakeScheduler, Plan, over_the_wire
from .script import EngineScript

logger = logging.getLogger(__name__)

VOCABULARY = 1_000_000


class FakeTokenizer:
    """Turns a text into one token per character."""

    chat_template = ""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def __call__(self, pairs: list[list[str]], **_options: Any) -> dict[str, list[list[int]]]:
        """Pairs of a query and a document, for a cross encoder."""
        return {
            "input_ids": [self.encode("".join(pair)) for pair in pairs],
            "token_type_ids": [[0] * len(q) + [1] * len(d) for q, d in pairs],
        }


class LegacyTimeStats(APIServerReqTimeStats):
    """Time stats of an SGLang build that does not record the dispatch."""

    def __getattribute__(self, name: str) -> Any:
        if name == "api_server_dispatch_finish_time":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def set_api_server_dispatch_finish_time(self, ts: float | None = None) -> None:
        pass


class UnstampedTimeStats(APIServerReqTimeStats):
    """Time stats whose dispatch is never recorded."""

    def set_api_server_dispatch_finish_time(self, ts: float | None = None) -> None:
        pass


class _ToScheduler:
    """The PUSH socket; `send_pyobj` is both called and awaited, as on a ``zmq.asyncio`` socket."""

    def __init__(self) -> None:
        self.receive: Callable[[Any], None] | None = None
        self.refuses: Callable[[Any], bool] = lambda _message: False

    def send_pyobj(self, message: Any, flags: int = 0, protocol: int | None = None) -> Any:
        assert self.receive is not None
        if self.refuses(message):
            raise RuntimeError("abort failed")
        self.receive(over_the_wire(message))
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent


class _FromDetokenizer:
    """The PULL socket. Like pyzmq's, it does not suspend while something waits."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()
        self._arrived: asyncio.Future[None] | None = None

    def put(self, message: Any) -> None:
        self._waiting.append(over_the_wire(message))
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def recv_pyobj(self, flags: int = 0) -> Any:
        while not self._waiting:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self._waiting.popleft()


class _StreamEnds(Exception):
    """A stream was told to end here."""


class _Breaker:
    """Turns what a stream awaits into an error, from outside."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._reader: asyncio.Task[Any] | None = None

    def trip(self, error: Exception | None) -> None:
        self._error = error if error is not None else _StreamEnds()
        if self._reader is not None:
            self._reader.cancel()

    async def guard(self, awaitable: Any) -> Any:
        if self._error is None:
            self._reader = asyncio.current_task()
            try:
                return await awaitable
            except asyncio.CancelledError:
                if self._error is None:
                    raise
                self._reader.uncancel()
            finally:
                self._reader = None
        raise self._error


class FakeTokenizerManager(TokenizerManager):
    """SGLang's tokenizer manager without a model, a tokenizer, sockets or a scheduler."""

    journal: Journal
    scheduler: FakeScheduler

    def attach(self, journal: Journal, script_for: Callable[[Any], EngineScript]) -> None:
        """Connect the fake scheduler; `script_for` is given each ``GenerateReqInput``."""
        self.journal = journal
        self._script_for = script_for
        self._breakers: list[_Breaker] = []
        self._plans: dict[str, Plan] = {}
        self.receive_loop_error: Exception | None = None
        self.scheduler = FakeScheduler(
            journal,
            self.recv_from_detokenizer.put,
            self._plans.__getitem__,
            skip_tokenizer_init=self.skip_tokenizer_init,
        )
        self.send_to_scheduler.receive = self.scheduler.receive
        self.send_to_scheduler.refuses = self._refuses
        self.watched: list[tuple[str, weakref.ref[Any]]] = []
        """States and streams of requests, to see whether they are freed."""

    def _refuses(self, message: Any) -> bool:
        plan = self._plans.get(message.rid) if isinstance(message, AbortReq) else None
        if plan is None or plan.refused_aborts >= plan.script.abort_send_errors:
            return False
        plan.refused_aborts += 1
        self.journal.record("sglang", "abort refused by the socket", message.rid)
        return True

    # ---- replaced parts of the constructor ----

    def init_model_config(self) -> None:
        self.model_path = "fake"
        self.served_model_name = "fake-model"
        self.model_config = SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["Fake"]),
            vocab_size=VOCABULARY,
            is_multimodal=False,
            is_embedding_gemma=False,
        )
        self.is_generation = True
        self.context_len = 8192
        self.image_token_id = None
        self.max_req_input_len = 8000
        self.enable_priority_scheduling = False
        self.default_priority_value = None
        self.num_reserved_tokens = 0
        self.validate_total_tokens = True

    def init_tokenizer_and_processor(self) -> None:
        self.mm_processor = self.processor = None
        self.tokenizer = None if self.skip_tokenizer_init else FakeTokenizer()
        self.async_dynamic_batch_tokenizer = None

    def init_ipc_channels(self, port_args: Any) -> None:
        self.send_to_scheduler = _ToScheduler()
        self.recv_from_detokenizer = _FromDetokenizer()
        self.tokenizer_ipc_name = None
        self.load_snapshot_reader = None

    # ---- SGLang's own methods, watched or slowed down ----

    def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[dict[str, Any]]:
        script = self._script_for(obj)
        if script.registers_as is not None:
            obj.rid = script.registers_as
        # SGLang copies its request objects for the choices of n > 1, and this with them.
        obj.fake_plan = Plan(script)
        stream = super().generate_request(obj, request)
        self.watched.append(("stream", weakref.ref(stream)))
        return self._shaped(stream, obj, script) if _shapes_the_stream(script) else stream

    async def _shaped(
        self, stream: AsyncIterator[dict[str, Any]], obj: Any, script: EngineScript
    ) -> AsyncIterator[dict[str, Any]]:
        """`stream` behind the faults that a stream, not a scheduler, can have."""
        breaker = _Breaker()
        if script.breakable:
            self._breakers.append(breaker)
        try:
            if script.registration_delay:
                await breaker.guard(asyncio.sleep(script.registration_delay))
            if script.registration_error is not None:
                raise script.registration_error
            while True:
                yield await breaker.guard(anext(stream))
        except (StopAsyncIteration, _StreamEnds):
            return
        except asyncio.CancelledError:
            self.journal.record("sglang", "stream cancelled", _name(obj.rid))
            if script.resists_cancel_for is not None:
                await asyncio.sleep(script.resists_cancel_for)
                self.journal.record("sglang", "stream gave in", _name(obj.rid))
            if script.cancel_error is not None:
                raise script.cancel_error from None
            if script.resists_cancel_for is None:
                raise
        finally:
            await stream.aclose()

    def break_streams(self, error: Exception | None) -> None:
        """asyncio. Streams of breakable scripts raise `error` now, or end; SGLang itself can't."""
        breakers, self._breakers = self._breakers, []
        for breaker in breakers:
            breaker.trip(error)

    def _init_req_state(self, obj: Any, request: Any = None) -> None:
        known = set(self.rid_to_state)
        super()._init_req_state(obj, request)
        plan: Plan = obj.fake_plan
        for rid in sorted(set(self.rid_to_state) - known):
            state = self.rid_to_state[rid]
            self.watched.append(("state", weakref.ref(state)))
            state.obj.fake_plan = plan
            self._plans[rid] = plan
            if plan.script.dispatch_not_stamped:
                state.time_stats = UnstampedTimeStats(disagg_mode=self.disaggregation_mode)
                state.time_stats.set_created_time()
            if plan.script.legacy_time_stats:
                state.time_stats = LegacyTimeStats(disagg_mode=self.disaggregation_mode)
                state.time_stats.set_created_time()
            self.journal.record("sglang", "registered", rid)

    async def _tokenize_one_request(self, obj: Any) -> Any:
        script = obj.fake_plan.script
        if script.tokenize_delay:
            await asyncio.sleep(script.tokenize_delay)
        if script.dispatch_error is not None:
            raise script.dispatch_error
        return await super()._tokenize_one_request(obj)

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        self.journal.record("sglang", "abort called", rid or None)
        super().abort_request(rid, abort_all)

    def _release_req_states_on_failure(self, rids: Any) -> None:
        rids = sorted(rids)
        self.journal.record("sglang", "stream released", _name(rids))
        super()._release_req_states_on_failure(rids)

    async def handle_loop(self) -> None:
        """SGLang kills the process when its receive loop fails; a test has to fail instead."""
        try:
            await super().handle_loop()
        except Exception as error:
            self.receive_loop_error = error
            logger.exception("the receive loop failed")

    async def sigterm_watchdog(self) -> None:
        """SGLang polls a flag here every 5 s to end the process; no test sets it."""
        await asyncio.get_running_loop().create_future()


def _shapes_the_stream(script: EngineScript) -> bool:
    return bool(
        script.registration_delay
        or script.registration_error
        or script.breakable
        or script.cancel_error
        or script.resists_cancel_for is not None
    )


def _name(rid: Any) -> str | None:
    return rid if isinstance(rid, str) else rid[0] if rid else None


@functools.cache
def _server_args(options: tuple[tuple[str, Any], ...]) -> ServerArgs:
    return ServerArgs(
        model_path="dummy",
        device="cpu",
        served_model_name="fake-model",
        dist_init_addr="127.0.0.1:29500",
        **{"incremental_streaming_output": True, **dict(options)},
    )


def published_server_args(**options: Any) -> ServerArgs:
    """SGLang's arguments with `options`, published in this process unless they are already.

    Resolving and publishing costs more than the rest of a fake engine.
    """
    server_args = _server_args(tuple(sorted(options.items())))
    try:
        assert_published(server_args, role="tokenizer")
    except RuntimeError:
        publish(server_args, role="tokenizer")
    return server_args


class FakeEngine(Engine):
    """``sglang.Engine`` around a `FakeTokenizerManager`. Build and use it on one loop."""

    def __init__(
        self,
        journal: Journal,
        script: EngineScript | Callable[[Any], EngineScript] | None = None,
        *,
        manager_class: type[FakeTokenizerManager] = FakeTokenizerManager,
        server_args: Mapping[str, Any] | None = None,
    ) -> None:
        """asyncio or Trio, inside an open loop.

        `script` is one script for all requests, or a function of SGLang's ``GenerateReqInput``.
        `server_args` are SGLang's; they are published process-wide, as SGLang does it, so that
        the newest engine wins.
        """
        self.server_args = published_server_args(**(server_args or {}))
        self.journal = journal
        self.tokenizer_manager = manager_class(
            self.server_args, None, start_pd_bootstrap_service=False
        )
        fallback = EngineScript() if script is None else script
        self.tokenizer_manager.attach(
            journal, fallback if callable(fallback) else lambda _obj: fallback
        )

    @property
    def scheduler(self) -> FakeScheduler:
        return self.tokenizer_manager.scheduler

    def shutdown(self) -> None:
        self.journal.record("sglang", "engine shut down")

    async def stop(self) -> None:
        """asyncio. End what the tokenizer manager started, so that the loop can close."""
        self.scheduler.stop()
        tasks = tuple(self.tokenizer_manager.asyncio_tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.tokenizer_manager.receive_loop_error is not None:
            raise self.tokenizer_manager.receive_loop_error

    @property
    def own_tasks(self) -> set[asyncio.Task[Any]]:
        """SGLang's tasks of the engine itself, which are not a request's."""
        tasks: set[asyncio.Task[Any]] = self.tokenizer_manager.asyncio_tasks
        return tasks
