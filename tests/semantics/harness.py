# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Runs one scenario against one implementation, in virtual time, and says what was seen.

The harness plays everything around the handler: the runtime that polls it, the client, the worker
that shuts down, and SGLang (`tests.fakes`). Both implementations run on the bridge's loop under
Trio's autojump clock; the incumbent as plain asyncio code there, since it needs no more.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import trio
import trio_asyncio
from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

from tests.fakes.bridge import open_loop
from tests.fakes.context import FakeContext, FakeResponseSender
from tests.fakes.engine import FakeEngine
from tests.fakes.journal import Entry, Journal
from tests.fakes.multimodal import image
from tests.fakes.script import EngineScript

from .observation import Logged, Observation, RequestRecord, Timed, finish_of, ids_of
from .scenario import Action, Leave, Request, Scenario

TIMELINES = "TRIO_WORKER_TIMELINES"
"""Environment variable: dump each run as JSON below build/timelines."""


class Subject(Protocol):
    """One implementation's handler around one engine, opened for one run."""

    def generate(
        self, request: dict[str, Any], context: FakeContext, sender: FakeResponseSender | None
    ) -> AsyncGenerator[Any, None]:
        """asyncio. What the runtime calls for each request."""

    def shutdown(self) -> None:
        """asyncio. The worker's shutdown has come to its migrate phase."""

    def cleanup(self) -> None:
        """asyncio. The worker takes the handler down."""

    @property
    def pending_aborts(self) -> int:
        """Aborts that are still waited for or retried."""

    def owns_for_life(self, task: asyncio.Task[Any]) -> bool:
        """Whether `task` belongs to the worker, not to a request."""


class Run:
    """What a run shares between the harness and the implementation."""

    def __init__(self, scenario: Scenario, loop: Any) -> None:
        self.scenario = scenario
        self.loop = loop
        self.journal = Journal()
        self.journal.open()

    def script_for(self, obj: Any) -> EngineScript:
        """The script of the request that SGLang was given; requests differ in their prompts."""
        ids = obj.input_ids[0] if isinstance(obj.input_ids[0], list) else obj.input_ids
        return self.scenario.requests[ids[-1] - LAST_PROMPT_TOKEN].script


class Opener(Protocol):
    """How an implementation is brought up for one run."""

    name: str
    push: bool
    """Whether the runtime would give this handler a response sender."""

    def open(self, run: Run) -> AbstractAsyncContextManager[tuple[FakeEngine, Subject]]:
        """Trio. An engine and a handler around it, until the context ends."""


class Implementation:
    """What a test gets: a name, and `run`."""

    def __init__(self, opener: Opener, test_id: str) -> None:
        self._opener = opener
        self._test_id = test_id
        self._runs = 0

    @property
    def name(self) -> str:
        return self._opener.name

    async def run(self, scenario: Scenario) -> Observation:
        """Trio, under an autojump clock. Raises only if the harness itself fails."""
        with _log_of_the_run() as logs:
            async with open_loop() as loop:
                observation = await _Stage(self._opener, scenario, loop, logs).play()
        self._runs += 1
        if os.environ.get(TIMELINES):
            _dump(observation, f"{self._test_id}-{self._runs}")
        return observation


class _Stage:
    """One run on one open loop."""

    def __init__(self, opener: Opener, scenario: Scenario, loop: Any, logs: _RunLog) -> None:
        self._opener = opener
        self._scenario = scenario
        self._loop = loop
        self._logs = logs
        self._loop_errors: list[str] = []
        self._stage_errors: list[BaseException] = []
        self._run = Run(scenario, loop)
        self._records = [RequestRecord() for _ in scenario.requests]
        self._contexts = [
            FakeContext(
                self._run.journal,
                f"dynamo-request{'' if index == 0 else f'-{index + 1}'}",
                trace_id=request.trace_id,
                first_token_error=request.first_token_error,
            )
            for index, request in enumerate(scenario.requests)
        ]
        self._senders: list[FakeResponseSender | None] = [None] * len(scenario.requests)
        self._owners = [trio.CancelScope() for _ in scenario.requests]
        self._reads_on = [trio.Event() for _ in scenario.requests]
        self._limit: trio.CancelScope
        self._lost = [False] * len(scenario.requests)
        self._subject: Subject
        self._engine: FakeEngine

    async def play(self) -> Observation:
        self._loop.set_exception_handler(self._on_loop_error)
        journal = self._run.journal
        self._logs.journal = journal
        async with self._opener.open(self._run) as (self._engine, self._subject):
            self._arrange()
            with trio.move_on_after(self._scenario.horizon) as self._limit:
                async with trio.open_nursery() as nursery:
                    for index in range(len(self._records)):
                        nursery.start_soon(self._consume, index)
            await trio.sleep(self._scenario.settle)
            observation = self._observe()
        if self._stage_errors:
            raise self._stage_errors[0]
        return observation

    # ---- the consumer: what the runtime does with a handler ----

    async def _consume(self, index: int) -> None:
        request = self._scenario.requests[index]
        record = self._records[index]
        if request.arrives:
            await trio.sleep(request.arrives)
        journal = self._run.journal
        with self._owners[index] as owner:
            try:
                await self._poll_to_the_end(index, request)
            except trio.Cancelled:
                raise
            except BaseException as error:
                # The runtime reads an error and lets it go, and with it the handler's frames.
                record.error = _without_frames(error)
        if self._limit.cancel_called:
            return  # it hung
        record.owner_cancelled = owner.cancelled_caught
        record.ended = journal.now()
        journal.record("runtime", "ended", detail=_ending(record))

    async def _poll_to_the_end(self, index: int, request: Request) -> None:
        journal = self._run.journal
        context = self._contexts[index]
        record = self._records[index]
        sender = None
        if self._opener.push and self._scenario.arm == "production":
            sender = self._senders[index] = record.sender = FakeResponseSender(
                journal, context, on_send=lambda item: self._got(index, item)
            )
        journal.record("runtime", "request", detail=context.id())
        stream = self._subject.generate(body_of(index, self._scenario), context, sender)
        if request.leave is not None and request.leave.after == 0:
            await self._leave(stream, request.leave)
            return
        was_lost = False
        while (item := await self._poll(stream, record)) is not _END:
            record.polled += 1
            self._got(index, item)
            del item
            if was_lost:
                return  # and the last reference goes: nobody closes the generator
            # The runtime stops the context of a lost consumer, polls once more, then lets go.
            was_lost = self._lost[index]
            if request.leave is not None and len(record.outputs) >= request.leave.after:
                await self._leave(stream, request.leave)
                return
            if request.stops_reading_after == len(record.outputs):
                await self._reads_on[index].wait()

    async def _leave(self, stream: AsyncGenerator[Any, None], leave: Leave) -> None:
        self._run.journal.record("client", "leaves", detail=leave.how)
        if leave.how == "aclose":
            await trio_asyncio.aio_as_trio(stream.aclose)()

    async def _poll(self, stream: AsyncGenerator[Any, None], record: RequestRecord) -> Any:
        """One ``__anext__`` as pyo3 makes it: no generator hooks, a task in an empty context."""
        with _no_generator_hooks():
            awaitable = stream.__anext__()
        task = contextvars.Context().run(asyncio.ensure_future, awaitable, loop=self._loop)
        try:
            return await trio_asyncio.run_aio_future(task)
        except StopAsyncIteration:
            return _END
        finally:
            if task.cancelling() and not task.cancelled():
                record.cancel_swallowed = True

    def _got(self, index: int, item: Any) -> None:
        journal = self._run.journal
        self._records[index].outputs.append(Timed(journal.now(), item))
        journal.record(
            "client",
            "chunk",
            detail={"request": index, "ids": ids_of(item), "finish": finish_of(item)},
        )

    # ---- everybody else ----

    def _arrange(self) -> None:
        for action in self._scenario.actions:
            if action.at is not None:
                self._loop.call_later(action.at, self._act_after_hops, action, action.hops)
            else:
                self._run.journal.watch(self._on_event(action))

    def _on_event(self, action: Action) -> Any:
        assert action.on is not None
        event, count = action.on
        seen = 0

        def watcher(entry: Entry) -> None:
            nonlocal seen
            if entry.event == event:
                seen += 1
                if seen == count:
                    self._act_after_hops(action, action.hops)

        return watcher

    def _act_after_hops(self, action: Action, hops: int) -> None:
        if hops:
            self._loop.call_soon(self._act_after_hops, action, hops - 1)
            return
        try:
            self._act(action)
        except BaseException as error:
            self._stage_errors.append(error)
            raise

    def _act(self, action: Action) -> None:
        index = action.request
        journal = self._run.journal
        manager = self._engine.tokenizer_manager
        match action.verb:
            case "stop":
                self._contexts[index].stop()
            case "kill":
                self._contexts[index].kill()
            case "shutdown":
                journal.record("worker", "shutdown")
                self._subject.shutdown()
            case "lose":
                sender = self._senders[index]
                if sender is not None:
                    sender.lose()
                else:
                    journal.record("client", "consumer lost")
                    self._lost[index] = True
                    self._contexts[index].stop()
            case "cancel owner":
                journal.record("runtime", "owner cancelled")
                self._owners[index].cancel()
            case "cleanup":
                journal.record("worker", "cleanup")
                self._subject.cleanup()
            case "read on":
                self._reads_on[index].set()
            case "pause engine":
                mode = action.argument or "in_place"
                self._control(manager.pause_generation(PauseGenerationReqInput(mode=mode)), "pause")
            case "continue engine":
                self._control(manager.continue_generation(ContinueGenerationReqInput()), "continue")
            case "break stream":
                manager.break_streams(action.argument)
            case "emit":
                rid = manager.scheduler.only_rid()
                manager.scheduler.emit_held(rid, action.argument)
            case "call":
                action.argument(self)

    def _control(self, call: Any, name: str) -> None:
        """A control request of an operator, answered when SGLang lets it through."""
        journal = self._run.journal
        journal.record("worker", f"{name} requested")

        async def control() -> None:
            await call
            journal.record("worker", f"{name} answered")

        self._engine.own_tasks.add(self._loop.create_task(control()))

    @property
    def loop(self) -> Any:
        return self._loop

    @property
    def engine(self) -> FakeEngine:
        return self._engine

    @property
    def subject(self) -> Subject:
        return self._subject

    def _on_loop_error(self, _loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._loop_errors.append(f"{context.get('message')}: {error!r}")

    def _observe(self) -> Observation:
        manager = self._engine.tokenizer_manager
        left = [
            task
            for task in asyncio.all_tasks(self._loop)
            if task not in self._engine.own_tasks and not self._subject.owns_for_life(task)
        ]
        return Observation(
            implementation=self._opener.name,
            journal=self._run.journal,
            requests=self._records,
            logs=self._logs.records,
            registry=sorted(manager.rid_to_state),
            engine_busy=manager.scheduler.busy,
            tasks_left=sorted(getattr(task.get_coro(), "__qualname__", "?") for task in left),
            loop_errors=self._loop_errors,
            not_freed=[what for what, alive in manager.watched if alive() is not None],
            pending_aborts=self._subject.pending_aborts,
            end=self._run.journal.now(),
        )


def _without_frames(error: BaseException) -> BaseException:
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return error


class _End:
    pass


_END = _End()


def _ending(record: RequestRecord) -> str:
    if record.owner_cancelled:
        return "cancelled"
    return "normally" if record.error is None else type(record.error).__name__


@contextmanager
def _no_generator_hooks() -> Iterator[None]:
    """pyo3 first polls a generator on a thread where no asyncgen hooks are installed."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)


LAST_PROMPT_TOKEN = ord("c")


def body_of(index: int, scenario: Scenario) -> dict[str, Any]:
    """The request as the frontend would send it: three prompt tokens, the last says which it is."""
    request = scenario.requests[index]
    sampling = {"max_tokens": 100, **request.sampling}
    if request.n is not None:
        sampling["n"] = request.n
    prompt = [ord("a"), ord("b"), LAST_PROMPT_TOKEN + index]
    if scenario.role.startswith("multimodal"):
        return _multimodal_body(prompt, sampling, request, scenario)
    body: dict[str, Any] = {"token_ids": prompt, **request.extra}
    if scenario.disaggregated or scenario.role == "prefill":
        body["bootstrap_info"] = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": 1,
            "bootstrap_room": 17,
        }
    if request.mode == "text":
        body |= {"prompt": "".join(map(chr, prompt)), **sampling}
    elif request.mode == "tokens":
        body["stop_conditions"] = {"max_tokens": sampling.pop("max_tokens")}
        body["sampling_options"] = sampling
    else:
        sampling["max_new_tokens"] = sampling.pop("max_tokens")
        native: dict[str, Any] = {"sampling_params": sampling}
        if request.rid is not None:
            native["rid"] = request.rid
        if request.session:
            native["session_params"] = {"id": "session-1", "rid": None}
        if request.batch is not None:
            body["token_ids"] = native["input_ids"] = [prompt] * request.batch
        body["extra_args"] = {"sglang_tito": native}
    if scenario.role == "prefill":
        return {"request": body, "sampling_params": {}}
    return body


def _multimodal_body(
    prompt: list[int], sampling: dict[str, Any], request: Request, scenario: Scenario
) -> dict[str, Any]:
    """As an encode worker sends it, with one image; a decode worker adds the parameters."""
    body = {
        "request": {
            "token_ids": prompt,
            "stop_conditions": {"max_tokens": sampling.pop("max_tokens")},
            "sampling_options": sampling,
        },
        "multimodal_inputs": [image()],
        **request.extra,
    }
    if scenario.role == "multimodal prefill":
        return {"request": body, "sampling_params": {"max_new_tokens": 1}}
    return body


class _RunLog(logging.Handler):
    """Keeps what is logged, with virtual times; what operators would see is in the journal too."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[Logged] = []
        self.journal: Journal | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.journal is None:
            return
        message = record.getMessage()
        self.records.append(
            Logged(
                self.journal.now(),
                record.levelno,
                record.name,
                message,
                record.exc_info[1] if record.exc_info else None,
            )
        )
        if record.levelno >= logging.INFO and not record.name.startswith("sglang"):
            self.journal.record("log", record.levelname, detail=message)


@contextmanager
def _log_of_the_run() -> Iterator[_RunLog]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    log = _RunLog()
    root.handlers[:] = [log]
    try:
        yield log
    finally:
        root.handlers[:] = handlers


def _dump(observation: Observation, name: str) -> None:
    document = {
        "implementation": observation.implementation,
        "events": observation.journal.as_rows(),
        "ended": [record.ended for record in observation.requests],
        "errors": [
            type(record.error).__name__ if record.error else None for record in observation.requests
        ],
    }
    folder = Path(__file__).parents[2] / "build" / "timelines"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name.replace('/', '.').replace('::', '.')}.json"
    file.write_text(json.dumps(document, indent=1, default=repr))
