# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Runs one case: the worker's request path, its clients, its runtime and its operator."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import traceback
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from . import rig  # first: it imports SGLang

# isort: split
import trio
import trio.testing
import trio_asyncio
from dynamo.sglang.args import Config
from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

from compat.egress import PullEgress
from compat.facade import Facade
from compat.feeders import Feeders
from compat.loop import WorkerLoop, open_loop
from compat.tap import Tap
from tests.fakes.context import FakeContext
from tests.fakes.journal import Entry, Journal
from tests.semantics.observation import finish_of, ids_of
from trio_worker.requests.abort import Aborts
from trio_worker.requests.live import LiveRequests
from trio_worker.requests.request import Request as LiveRequest
from trio_worker.roles.decode import DecodeRequests
from trio_worker.roles.prefill import PrefillRequests

from .carriers import Channel, VirtualSenders
from .case import LAST_CALL, PATIENCE, SETTLE, Act, Case, PlanningFailed, Request, UploadFailed
from .record import Got, Moment, Record, RequestRecord

SHUTDOWN_BOUND = 1.0
"""Seconds of the migrate phase (DESIGN §6, phase 3)."""


@dataclass(frozen=True)
class _End:
    """How a handler's generator ended."""

    error: str
    text: str
    group: bool

    @property
    def normal(self) -> bool:
        return self.error == "StopAsyncIteration"


def _end_of(task: asyncio.Task[Any]) -> _End:
    if task.cancelled():
        return _End("CancelledError", "", False)
    error = task.exception()
    if error is None:
        return _End("StopAsyncIteration", "an item that came too late", False)
    try:
        group = isinstance(error, BaseExceptionGroup | trio.Cancelled)
        return _End(type(error).__name__, str(error), group)
    finally:
        del error


Search = Callable[[], list[str]]


def play(case: Case, *, search: Search | None = None, verbose: bool = False) -> Record:
    """One run, in virtual time. Raises only if the simulation itself is at fault.

    `search` looks for garbage (`tests.simulation.garbage`) while the worker is at rest again.
    """
    journal = Journal()
    record = Record(case, journal, [RequestRecord() for _ in case.requests])
    if search is not None:
        gc.collect()  # what earlier runs left: a worker that is gone is one big cycle
    with rig.conditions(case) as record.unraisable, _Log(record, verbose):
        trio.run(
            _Play(case, record, search).run,
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
    return record


class _Context(FakeContext):
    """Notes when it was stopped."""

    def __init__(self, play: _Play, index: int) -> None:
        super().__init__(play.journal, rig.context_id(index))
        self._play = play
        self._index = index

    def _end(self, how: str) -> None:
        record = self._play.record.requests[self._index]
        super()._end(f"{how} {self._index}")
        if record.stopped is None:
            record.stopped = self._play.now()


class _Play:
    def __init__(self, case: Case, record: Record, search: Search | None) -> None:
        self.case = case
        self.record = record
        self.journal = record.journal
        self._search = search
        self._contexts = [_Context(self, index) for index in range(len(case.requests))]
        self._owners = [trio.CancelScope() for _ in case.requests]
        self._channels: list[Channel | None] = [None] * len(case.requests)
        self._lost = [False] * len(case.requests)
        self._admitted: list[LiveRequest | None] = [None] * len(case.requests)
        self._scripts = {id(request.script): i for i, request in enumerate(case.requests)}
        self._waiting_acts: dict[tuple[str, int], list[list[Any]]] = {}
        self._paused = False
        self._up = trio.Event()
        self._close = trio.Event()
        self._closed = trio.Event()
        self._house: trio.Nursery
        self._loop: WorkerLoop
        self._engine: rig.SimulatedEngine
        self._live: LiveRequests
        self._feeders: Feeders
        self._facade: Facade
        self._serving: trio.Nursery
        self._aborting: trio.Nursery

    def now(self) -> Moment:
        return Moment(len(self.journal.entries), self.journal.now())

    # ---- the run ----

    async def run(self) -> None:
        case = self.case
        self.journal.open()
        self.journal.watch(self._note)
        async with open_loop() as self._loop:
            self._loop.set_exception_handler(self._on_loop_error)
            self._loop.set_task_factory(rig.make_task)
            self._engine = rig.SimulatedEngine(
                self.journal, case, lambda index: case.requests[index].script
            )
            async with trio.open_nursery() as self._house:
                self._house.start_soon(self._worker)
                await self._up.wait()
                for act in case.acts:
                    self._arrange(act)
                self._house.start_soon(self._last_call)
                with trio.move_on_after(LAST_CALL + PATIENCE):
                    async with trio.open_nursery() as clients:
                        for index in range(len(case.requests)):
                            clients.start_soon(self._client, index)
                await self._settle()
                self._house.cancel_scope.cancel()
            await trio_asyncio.aio_as_trio(self._engine.stop)()

    async def _settle(self) -> None:
        await trio.sleep(SETTLE)
        self._look_at_rest()
        if self._search is not None:
            self.record.garbage = self._search()
        if not self._close.is_set():
            self._close.set()
        await self._closed.wait()

    def _look_at_rest(self) -> None:
        manager = self._engine.tokenizer_manager
        loop_tasks = asyncio.all_tasks(self._loop) - self._engine.own_tasks
        resting: dict[str, Any] = {
            "registry": sorted(manager.rid_to_state),
            "scheduler": manager.scheduler.busy,
            "flights": sorted(getattr(manager, "flights", ())),
            "live requests": len(self._live),
            "request tasks": len(self._serving.child_tasks),
            "abort tasks": len(self._aborting.child_tasks) - (not self._closed.is_set()),
            "asyncio tasks": len(loop_tasks) - len(self._feeders),
        }
        self.record.left_over = {name: value for name, value in resting.items() if value}
        self.record.feeders_left = len(self._feeders)
        self.record.owner_of = {
            rid: self._scripts[id(plan.script)] for rid, plan in manager._plans.items()
        }
        for context, record in zip(self._contexts, self.record.requests, strict=True):
            record.first_token_notices = context.first_token_notices

    # ---- the worker ----

    async def _worker(self) -> None:
        """The nurseries that a worker has, in the order in which it leaves them."""
        try:
            async with trio.open_nursery() as self._aborting:
                self._aborting.start_soon(self._serve)
                await self._closed.wait()
                self._aborting.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            self.record.crash = "".join(traceback.format_exception(group))
            self._closed.set()
            self._up.set()

    async def _serve(self) -> None:
        async with trio.open_nursery() as self._serving:
            self._build()
            self._up.set()
            await self._close.wait()
            self.record.refusing = self.now()
            self.journal.record("worker", "serving cancelled")
            self._serving.cancel_scope.cancel()
        self.record.joined = self.now()
        self.record.feeders_left_behind = await self._feeders.close(1.0)
        self._closed.set()

    def _build(self) -> None:
        case = self.case
        engine = self._engine
        config = Config(
            engine.server_args, SimpleNamespace(use_sglang_tokenizer=case.text, enable_rl=False)
        )
        kind = PrefillRequests if case.role == "prefill" else DecodeRequests
        handler = kind(engine, config, None, None, None)
        handler.tap = case.tap
        handler._metadata_uploader_from_request = self._uploader
        self._feeders = Feeders(self._loop)
        self._live = LiveRequests(
            loop=self._loop,
            serving=self._serving,
            feeders=self._feeders,
            aborts=Aborts(
                engine.tokenizer_manager, self._aborting, order_is_proven=case.order_is_proven
            ),
            tokenizer_manager=engine.tokenizer_manager,
        )
        self._live.landed = self._landing(self._live.landed)  # type: ignore[method-assign]

        async def planned(body: dict[str, Any], context: Any) -> Any:
            index = _index_of(body)
            request = case.requests[index]
            if request.planning_seconds:
                await asyncio.sleep(request.planning_seconds)
            if request.planning_fails:
                self.record.requests[index].trouble_seen = True
                raise PlanningFailed("scripted: planning")
            return await handler.plan(body, context)

        def admit(body: dict[str, Any], context: Any, egress: Any) -> LiveRequest:
            admitted = self._live.admit(context, egress, lambda: planned(body, context))
            self._admitted[_index_of(body)] = admitted
            return admitted

        senders: Any = VirtualSenders(self._house, case.pick_up)
        self._facade = Facade(admit, senders, case.backlog_frames)

    def _landing(self, landed: Any) -> Any:
        def note(request: LiveRequest) -> None:
            index = rig.index_of(request.context_id)
            self.record.requests[index].landed = self.now()
            self._admitted[index] = None
            self.journal.record("worker", "landed", detail=index)
            landed(request)

        return note

    def _uploader(self, body: dict[str, Any]) -> Any:
        index = _index_of(body)
        upload = self.case.requests[index].upload
        return None if upload is None else _Uploader(self, index)

    async def _shut_down(self) -> None:
        if self.record.shutdown is not None or self._close.is_set():
            return
        self.record.shutdown = self.now()
        self.journal.record("worker", "crash" if self.case.crash else "shutdown")
        if not self.case.crash:
            self._live.migrate_all()
            with trio.move_on_after(SHUTDOWN_BOUND):
                await self._live.wait_all_ended()
        self._close.set()

    # ---- a client, and the runtime between it and the worker ----

    async def _client(self, index: int) -> None:
        request = self.case.requests[index]
        record = self.record.requests[index]
        await trio.sleep(request.arrives)
        record.arrived = self.now()
        self.journal.record("runtime", "request", detail=index)
        with self._owners[index]:
            serve = self._push if request.arm == "push" else self._pull
            end = await serve(index, request, record)
            if end is not None and not end.normal:
                record.error = end.error
                record.error_text = end.text
                record.group = end.group
        channel = self._channels[index]
        if channel is not None:
            channel.over = True
            record.faults += channel.faults
            channel.faults = record.faults
        record.ended = self.now()
        self.journal.record("runtime", "ended", detail=f"{index}: {record.error or 'normally'}")

    async def _push(self, index: int, request: Request, record: RequestRecord) -> _End | None:
        channel = Channel(
            self.journal,
            self._contexts[index],
            request.consumer,
            lambda item: self._got(index, item),
        )
        self._channels[index] = channel
        if self._lost[index]:
            channel.lose()
        self._house.start_soon(channel.read)
        stream = self._facade.generate(self._body(index), self._contexts[index], channel)
        while not isinstance(end := await self._poll(stream), _End):
            record.faults.append("a push handler yielded (rule 116)")
        return end

    async def _pull(self, index: int, request: Request, record: RequestRecord) -> _End | None:
        consumer = request.consumer
        taken = 0
        stream = self._facade.generate(self._body(index), self._contexts[index])
        while not isinstance(item := await self._poll(stream), _End):
            was_lost = self._lost[index]
            self._got(index, item)
            del item
            taken += 1
            if was_lost:
                # The runtime lets go without aclose() (C60).
                record.left = self.now()
                return None
            if taken == consumer.leaves_after:
                record.left = self.now()
                self.journal.record("client", f"leaves: {consumer.leaves_how}", detail=index)
                if consumer.leaves_how == "aclose":
                    await trio_asyncio.aio_as_trio(stream.aclose)()
                return None
            if taken == consumer.stalls_after:
                await trio.sleep(max(0.0, consumer.stalls_until - self.journal.now()))
            elif consumer.every:
                await trio.sleep(consumer.every)
        return item

    def _body(self, index: int) -> dict[str, Any]:
        body = _body_of(index, self.case.requests[index])
        if self.case.role == "prefill":
            body["bootstrap_info"] = {"bootstrap_room": index}
            return {"request": body, "sampling_params": {}}
        return body

    async def _poll(self, stream: AsyncGenerator[Any, None]) -> Any:
        """One ``__anext__`` as pyo3 makes it: no generator hooks, a task in an empty context.

        The item, or an `_End`. An error is described and dropped: kept, or raised on from here,
        it would make the very cycles that we look for.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            awaitable = stream.__anext__()
        finally:
            sys.set_asyncgen_hooks(*hooks)
        task = contextvars.Context().run(asyncio.ensure_future, awaitable, loop=self._loop)
        done = trio.Event()
        task.add_done_callback(lambda _task: done.set())
        try:
            await done.wait()
        except trio.Cancelled:
            task.cancel()
            with trio.CancelScope(shield=True):
                await done.wait()
            return _end_of(task)
        return _end_of(task) if task.cancelled() or task.exception() else task.result()

    def _got(self, index: int, item: Any) -> None:
        record = self.record.requests[index]
        ids = tuple(ids_of(item))
        finish = finish_of(item)
        native = (item.get("engine_data") or {}).get("sglang_response") or {}
        choices = item.get("choices")
        choice = choices[0]["index"] if choices else native.get("index", item.get("index"))
        channel = self._channels[index]
        late = record.stopped is not None and channel is not None and not channel.carried
        record.got.append(Got(self.now(), choice or 0, ids, finish, late, _kind_of(item)))
        self.journal.record("client", "chunk", detail={"request": index, "ids": ids, "end": finish})

    # ---- everybody else ----

    def _arrange(self, act: Act) -> None:
        if act.on is not None:
            self._waiting_acts.setdefault((act.on[0], act.request), []).append([act.on[1], act])
        if act.at is None:
            return
        if act.flavour == "asyncio":
            self._loop.call_later(act.at, self._act_in_callback, act, act.hops)
        else:
            self._house.start_soon(self._act_in_task, act, act.at)

    def _note(self, entry: Entry) -> None:
        if entry.event == "output":
            self._measure(self._request_of(entry))
        if not self._waiting_acts:
            return
        waiting = self._waiting_acts.get((entry.event, self._request_of(entry)))
        if not waiting:
            return
        for item in waiting[:]:
            item[0] -= 1
            if item[0] == 0:
                waiting.remove(item)
                self._act_by_flavour(item[1])

    def _measure(self, index: int) -> None:
        """How much waits for a slow consumer."""
        admitted = self._admitted[index]
        if admitted is None:
            return
        record = self.record.requests[index]
        egress = admitted._egress
        responses = egress._waiting if isinstance(egress, PullEgress) else egress.frames
        record.most_responses = max(record.most_responses, len(responses))
        handover = admitted._handover
        chunks = handover.backlog
        if isinstance(handover.tap, Tap) and not handover.tap._state.finished:
            chunks += len(handover.tap._state.out_list)
        record.most_chunks = max(record.most_chunks, chunks)

    def _request_of(self, entry: Entry) -> int:
        if entry.rid is not None:
            plan = self._engine.tokenizer_manager._plans.get(entry.rid)
            return -1 if plan is None else self._scripts[id(plan.script)]
        detail = entry.detail
        if isinstance(detail, dict):
            return int(detail["request"])
        return detail if isinstance(detail, int) else -1

    def _act_by_flavour(self, act: Act) -> None:
        if act.flavour == "direct":
            self._act(act)
        elif act.flavour == "asyncio":
            self._loop.call_soon(self._act_in_callback, act, act.hops)
        else:
            # An event may be told in the empty context of the runtime's calls.
            self._loop.base_context.run(self._house.start_soon, self._act_in_task, act, 0.0)

    def _act_in_callback(self, act: Act, hops: int) -> None:
        if hops:
            self._loop.call_soon(self._act_in_callback, act, hops - 1)
        else:
            self._act(act)

    async def _act_in_task(self, act: Act, seconds: float) -> None:
        if seconds:
            await trio.sleep(seconds)
        for _ in range(act.hops):
            await trio.lowlevel.checkpoint()
        if act.verb == "shutdown":
            await self._shut_down()
        else:
            self._act(act)

    def _act(self, act: Act) -> None:
        index = act.request
        record = self.record.requests[index]
        manager = self._engine.tokenizer_manager
        match act.verb:
            case "stop":
                self._contexts[index].stop()
            case "kill":
                self._contexts[index].kill()
            case "lose":
                self._lose(index)
            case "cancel owner":
                if record.ended is None:
                    self.journal.record("runtime", "owner cancelled", detail=index)
                    record.owner_cancelled = record.owner_cancelled or self.now()
                    self._owners[index].cancel()
            case "pause engine" if not self._paused:
                self._paused = True
                self._control(manager.pause_generation(PauseGenerationReqInput(mode="in_place")))
                self._loop.call_later(act.seconds, self._continue_engine)
            case "break streams":
                self.journal.record("sglang", "streams broken")
                self.record.broken = True
                manager.break_streams(RuntimeError("scripted: stream"))
            case "abort all":
                manager.abort_request(abort_all=True)

    def _continue_engine(self) -> None:
        self._paused = False
        manager = self._engine.tokenizer_manager
        self._control(manager.continue_generation(ContinueGenerationReqInput()))

    def _control(self, call: Any) -> None:
        tasks = self._engine.own_tasks
        task = self._loop.create_task(call)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _lose(self, index: int) -> None:
        self.journal.record("client", "consumer lost", detail=index)
        self._lost[index] = True
        channel = self._channels[index]
        if channel is not None:
            channel.lose()
        elif self.case.requests[index].arm == "pull":
            self._contexts[index].stop()

    async def _last_call(self) -> None:
        await trio.sleep(LAST_CALL)
        self.record.last_call = self.now()
        for index, record in enumerate(self.record.requests):
            if record.ended is None:
                self._contexts[index].stop()

    def _on_loop_error(self, _loop: Any, context: dict[str, Any]) -> None:
        self.record.loop_errors.append(f"{context.get('message')}: {context.get('exception')!r}")


class _Uploader:
    """``dynamo.common.metadata_upload.MetadataUploader``."""

    def __init__(self, play: _Play, index: int) -> None:
        self._play = play
        self._index = index

    async def upload_choice(self, index: int, meta_info: dict[str, Any]) -> None:
        """asyncio."""
        play = self._play
        upload = play.case.requests[self._index].upload
        assert upload is not None
        play.journal.record("worker", "upload", detail=self._index)
        if upload.seconds:
            await asyncio.sleep(upload.seconds)
        record = play.record.requests[self._index]
        if upload.fails:
            record.trouble_seen = True
            raise UploadFailed("scripted: upload")
        record.uploads.append(index)
        assert meta_info["finish_reason"]


def _body_of(index: int, request: Request) -> dict[str, Any]:
    """The request as the frontend would send it; its prompt says whose it is."""
    first = rig.FIRST_PROMPT_TOKEN + index
    prompt = [first, 2, 3]
    sampling: dict[str, Any] = {} if request.n is None else {"n": request.n}
    body: dict[str, Any] = {"token_ids": prompt}
    if request.mode == "text":
        return body | {"prompt": f"{chr(first)}bc", "max_tokens": 100, **sampling}
    if request.mode == "tokens":
        return body | {"stop_conditions": {"max_tokens": 100}, "sampling_options": sampling}
    native: dict[str, Any] = {
        "sampling_params": {"max_new_tokens": 100, **sampling},
        "rid": f"caller-{index}",
    }
    if request.session:
        native["session_params"] = {"id": "session-1", "rid": None}
    if request.batch is not None:
        body["token_ids"] = native["input_ids"] = [prompt] * request.batch
    return body | {"extra_args": {"sglang_tito": native}}


def _kind_of(item: Any) -> Literal["tokens", "bootstrap", "cache hit"]:
    if "disaggregated_params" in item:
        return "bootstrap"
    # A decode's final response tells of the cache as well.
    alone = item.keys() == {"token_ids", "engine_data"}
    hit = alone and item["engine_data"].keys() == {"kv_cache_hit"}
    return "cache hit" if hit else "tokens"


def _index_of(body: dict[str, Any]) -> int:
    ids = body.get("request", body)["token_ids"]
    first = ids[0][0] if isinstance(ids[0], list) else ids[0]
    return int(first) - rig.FIRST_PROMPT_TOKEN


class _Log(logging.Handler):
    """Keeps what the run logs: warnings and worse, or all of it."""

    def __init__(self, record: Record, verbose: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._record = record
        self._verbose = verbose

    def emit(self, line: logging.LogRecord) -> None:
        text = line.getMessage()
        if line.exc_info and line.exc_info[1] is not None:
            text += f" [{line.exc_info[1]!r}]"
        try:
            time = self._record.journal.now()
        except RuntimeError:
            time = 0.0  # a thread of some library
        self._record.log.append((time, line.levelname, text))

    def __enter__(self) -> _Log:
        root = logging.getLogger()
        self._kept = root.handlers[:], root.level
        root.handlers[:] = [self]
        # Setting a level empties every logger's cache, and there are thousands.
        level = logging.INFO if self._verbose else logging.WARNING
        if root.level != level:
            root.setLevel(level)
        return self

    def __exit__(self, *_exc: object) -> None:
        root = logging.getLogger()
        root.handlers[:] = self._kept[0]
