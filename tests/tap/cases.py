# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""What is asked of the engine, each request with and without the tap at the same time."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import trio
from sglang.srt.managers import io_struct as io

from compat.engine import SglangEngine
from compat.handover import Handover
from compat.loop import WorkerLoop
from compat.tap import Flight, Tap
from tests.tap.runs import BOTH, CUSTOM_KEY, Run, Way
from trio_worker.standin.events import read_events

PATIENCE_S = 60.0

ALL_LOGPROBS = {
    "return_logprob": True,
    "top_logprobs_num": 2,
    "token_ids_logprob": [70, 80],
    "logprob_start_len": 0,
    "return_text_in_logprobs": True,
}

During = Callable[[Run], Awaitable[None]]

cases: list[Callable[..., Any]] = []
"""In the order in which they run."""


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    """Trio. Something to be seen on the shared engine; returns what JSON can say."""
    cases.append(function)
    return function


class Bench:
    """The engine, and what cases need of it. Trio."""

    def __init__(self, loop: WorkerLoop, engine: SglangEngine, scratch: Path) -> None:
        self.loop = loop
        self.engine = engine
        self.manager = engine.tokenizer_manager
        self.scratch = scratch
        self.asked = 0

    async def alike(
        self,
        text: str = "hello",
        *,
        name: str = "",
        ways: Iterable[Way] = BOTH,
        during: During | None = None,
        faults: str = "",
        request: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> dict[str, Any]:
        """The same request in several ways at once; what each got, by way."""
        runs = self.runs(text, name=name, ways=ways, faults=faults, request=request, **sampling)
        await self.together(runs, during)
        return {run.way: run.record() for run in runs}

    def runs(
        self,
        text: Any = "hello",
        *,
        name: str = "",
        ways: Iterable[Way] = BOTH,
        faults: str = "",
        request: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> list[Run]:
        self.asked += 1
        if faults:
            sampling["custom_params"] = {"stand_in": faults}
        asked = {"text": text, "sampling_params": sampling, "stream": True, **(request or {})}
        return [Run(self.engine, way, f"{name or 'r'}.{self.asked}.{way}", asked) for way in ways]

    async def together(self, runs: Iterable[Run], during: During | None = None) -> None:
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(run)
                if during is not None:
                    nursery.start_soon(during, run)

    async def seen(self, event: str, rid: str) -> None:
        """Until the scheduler has noted `event` of `rid`."""
        await self.until(lambda: any(e.get("rid") == rid for e in self.events(event)))

    async def stalled(self, run: Run, tokens: int) -> None:
        """Until the scheduler stalls `run`, and SGLang's manager has got all its tokens so far."""
        await self.seen("fault", run.rid)
        registry = self.manager.rid_to_state
        await self.until(
            lambda: run.rid in registry and len(registry[run.rid].output_ids) == tokens
        )

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await trio.sleep(0.005)

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        return read_events(self.scratch / "events.jsonl", event)

    def tell_scheduler(self, message: Any) -> None:
        self.manager._dispatch_to_scheduler(message)

    async def asyncio(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self.loop.run_aio_coroutine(call(*args))

    def abort_on(self, event: str) -> During:
        """Abort each request by its rid when the scheduler notes `event` of it."""

        async def abort(run: Run) -> None:
            await self.seen(event, run.rid)
            self.manager.abort_request(run.rid)

        return abort


# ---- what a request asks for ----


@case
async def whole_streams(bench: Bench) -> Any:
    return {
        "plain": await bench.alike(max_new_tokens=40),
        "one token": await bench.alike(max_new_tokens=1),
        "two tokens": await bench.alike(max_new_tokens=2),
        "no token": await bench.alike(max_new_tokens=0),
        "stop string": await bench.alike(max_new_tokens=40, stop=["klm"]),
        "stop id": await bench.alike(max_new_tokens=40, stop_token_ids=[67]),
        "least": await bench.alike(max_new_tokens=40, min_new_tokens=30, stop=["klm"]),
        "ids in": await bench.alike(
            None,
            request={"input_ids": [74, 71, 78], "return_prompt_token_ids": True},
            max_new_tokens=9,
        ),
        "too long": await bench.alike(max_new_tokens=100_000),
    }


@case
async def per_token_metadata(bench: Bench) -> Any:
    def asked(**request: Any) -> Any:
        return bench.alike(max_new_tokens=20, request=request)

    return {
        "logprobs": await asked(return_logprob=True),
        "all logprobs": await asked(**ALL_LOGPROBS),
        "flat": await asked(**ALL_LOGPROBS, return_flat_raw_top_logprobs=True),
        "masks": await asked(return_sampling_mask=True),
    }


@case
async def without_tokenizer(bench: Bench) -> Any:
    """The same, where outputs have no text (`Wire`)."""
    return {
        "plain": await bench.alike(name="ids", max_new_tokens=20),
        "all logprobs": await bench.alike(name="ids", max_new_tokens=20, request=ALL_LOGPROBS),
        "error": await bench.alike(name="ids", max_new_tokens=9, faults="error:at=5:status=500"),
        "echo": await _echo_after_outputs(bench, name="ids"),
    }


@case
async def irregular_steps(bench: Bench) -> Any:
    return {
        "burst": await bench.alike(max_new_tokens=80, faults="burst:at=10:size=50"),
        "retraction": await bench.alike(max_new_tokens=12, faults="retract:at=4:times=2:ms=5"),
        "hang": await bench.alike(max_new_tokens=12, faults="hang:at=4:ms=60"),
    }


# ---- errors and aborts ----

ERRORS = {
    "400": "error:at=5:status=400:type=BadRequestError:message=bad",
    "500": "error:at=5:status=500",
    "503": "error:at=5:status=503",
    "none": "error:at=5",
    "first 500": "error:at=1:status=500",
    "arrival": "error:at=0",
    "arrival 400": "error:at=0:status=400",
    "arrival 503": "error:at=0:status=503",
    "nonsense": "bang:at=3",
}


@case
async def scheduler_errors(bench: Bench) -> Any:
    return {
        name: await bench.alike(max_new_tokens=9, faults=faults, request=ALL_LOGPROBS)
        for name, faults in ERRORS.items()
    }


@case
async def errors_without_stream(bench: Bench) -> Any:
    """There SGLang raises what a stream would get as its last chunk."""
    return {
        name: await bench.alike(max_new_tokens=9, faults=faults, request={"stream": False})
        for name, faults in ERRORS.items()
    }


@case
async def aborts_by_phase(bench: Bench) -> Any:
    async def too_early() -> Any:
        """SGLang sends the abort ahead of the request, which then runs to its end."""

        async def abort_first(obj: Any) -> Any:
            manager.abort_request(obj.rid)
            return await tokenize(obj)

        tokenize = manager._tokenize_one_request
        manager._tokenize_one_request = abort_first
        try:
            return await bench.alike(max_new_tokens=9)
        finally:
            manager._tokenize_one_request = tokenize

    async def when_all_stall(run: Run) -> None:
        await bench.stalled(run, 5)
        arrived.add(run.rid)
        if len(arrived) == len(BOTH):
            manager.abort_request(abort_all=True)

    manager = bench.manager
    arrived: set[str] = set()
    stalled = "stall:at=6:ms=never"
    found = {
        "before dispatch": await too_early(),
        "in prefill": await bench.alike(
            max_new_tokens=9, faults="slow_prefill:ms=never", during=bench.abort_on("arrive")
        ),
        "late echo": await bench.alike(
            max_new_tokens=9,
            faults="slow_prefill:ms=never,delay_echo:ms=40",
            during=bench.abort_on("arrive"),
        ),
        "streaming": await bench.alike(
            max_new_tokens=50,
            faults=stalled,
            request=ALL_LOGPROBS,
            during=bench.abort_on("fault"),
        ),
        "late": await bench.alike(
            max_new_tokens=50, faults=stalled + ",delay_echo:ms=40", during=bench.abort_on("fault")
        ),
        "ignored": await bench.alike(
            max_new_tokens=30, faults="ignore_abort", during=bench.abort_on("start")
        ),
        "echo after outputs": await _echo_after_outputs(bench),
    }
    bench.tell_scheduler(io.PauseGenerationReqInput(mode="in_place"))
    found["in queue"] = await bench.alike(max_new_tokens=9, during=bench.abort_on("arrive"))
    bench.tell_scheduler(io.ContinueGenerationReqInput())
    found["all"] = await bench.alike(max_new_tokens=50, faults=stalled, during=when_all_stall)
    return found


async def _echo_after_outputs(bench: Bench, name: str = "") -> Any:
    """Aborted in the queue, into which a pause has put them back in mid-stream."""

    runs = bench.runs(
        name=name, max_new_tokens=50, faults="stall:at=6:ms=never", request=ALL_LOGPROBS
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.together, runs)
        for run in runs:
            await bench.stalled(run, 5)
        bench.tell_scheduler(io.PauseGenerationReqInput(mode="retract"))
        for run in runs:
            bench.manager.abort_request(run.rid)
    bench.tell_scheduler(io.ContinueGenerationReqInput())
    return {run.way: run.record() for run in runs}


@case
async def running_aborts(bench: Bench) -> Any:
    """In full flight; where the cut is, depends on the moment."""

    async def abort(run: Run) -> None:
        await bench.until(lambda: len(run.chunks) >= 4)
        bench.manager.abort_request(run.rid)

    return await bench.alike(name="cut", max_new_tokens=1500, request=ALL_LOGPROBS, during=abort)


@case
async def leaving(bench: Bench) -> Any:
    """Nobody waits any more: SGLang's generator is cancelled, which aborts."""

    async def leave(run: Run) -> None:
        await bench.stalled(run, 5)
        if run.way is Way.PLAIN:
            # What has not woken its task yet would go with the task.
            await bench.until(lambda: len(run.chunks) == 5)
        run.leave()
        await bench.seen("abort", run.rid)

    found = await bench.alike(max_new_tokens=50, faults="stall:at=6:ms=never", during=leave)
    end = f".{bench.asked}."
    aborts = Counter(e["rid"].rpartition(".")[2] for e in bench.events("abort") if end in e["rid"])
    return {"got": found, "aborts": aborts}


# ---- outside of the tap's scope ----


@case
async def outside(bench: Bench) -> Any:
    async def asked(text: Any = "hello", **sampling: Any) -> Any:
        runs = bench.runs(text, **sampling)
        await bench.together(runs)
        cumulative = not bench.manager.incremental_streaming_output
        return {
            run.way: {**by_index(run, cumulative=cumulative), "left": forget_states(run)}
            for run in runs
        }

    def forget_states(run: Run) -> int:
        """SGLang leaves the states of samples that it then submits under other rids (rule 118)."""
        registry = bench.manager.rid_to_state
        left = [rid for rid in registry if rid.startswith(f"{run.rid}_")]
        for rid in left:
            del registry[rid]
        return len(left)

    found = {
        "samples": await asked(n=3, temperature=0.5, max_new_tokens=9),
        "batch": await asked(["a", "bcd"], max_new_tokens=9),
        "beam": await asked(beam_width=2, n=2, max_new_tokens=9),
        "at once": await asked(max_new_tokens=40, request={"stream": False, **ALL_LOGPROBS}),
    }
    bench.manager.incremental_streaming_output = False
    found["cumulative"] = await asked(max_new_tokens=40, request=ALL_LOGPROBS)
    bench.manager.incremental_streaming_output = True
    return found


def by_index(run: Run, *, cumulative: bool = False) -> Any:
    """What each stream got, as far as it does not depend on how it was cut."""
    streams: dict[int, list[Any]] = {}
    for chunk in run.chunks:
        streams.setdefault(chunk.get("index", 0), []).append(chunk)
    if cumulative:
        streams = {index: chunks[-1:] for index, chunks in streams.items()}
    return {
        "tapped": run.tapped,
        "error": run.error,
        "streams": {
            index: {
                "text": "".join(chunk["text"] for chunk in chunks),
                "ids": [token for chunk in chunks for token in chunk["output_ids"]],
                "finish": chunks[-1]["meta_info"]["finish_reason"],
                "customized": [
                    item for chunk in chunks for item in chunk["meta_info"].get(CUSTOM_KEY, ())
                ],
                "logprobs": chunks[-1]["meta_info"].get("output_token_logprobs"),
                "completion": chunks[-1]["meta_info"].get("completion_tokens"),
            }
            for index, chunks in sorted(streams.items())
        },
    }


# ---- what SGLang does beside ----


class CountingRegistry:
    """In place of SGLang's ``LoRARegistry``; an adapter's id is its name. asyncio."""

    def __init__(self) -> None:
        self.acquired: Counter[str] = Counter()
        self.released: Counter[str] = Counter()

    async def get_unregistered_loras(self, _names: Any) -> list[str]:
        return []

    async def acquire(self, name: str) -> str:
        self.acquired[name] += 1
        return name

    async def release(self, lora_id: str) -> None:
        await asyncio.sleep(0)
        self.released[lora_id] += 1


@case
async def adapters(bench: Bench) -> Any:
    async def asked(name: str, during: During | None = None, faults: str = "") -> Any:
        runs = bench.runs(max_new_tokens=9, faults=faults)
        for run in runs:
            run._request = {**run._request, "lora_path": f"{name}.{run.way}"}
        await bench.together(runs, during)

    manager = bench.manager
    registry = CountingRegistry()
    before = manager.enable_lora, manager.lora_registry
    manager.enable_lora, manager.lora_registry = True, registry
    await asked("finished")
    await asked("aborted", bench.abort_on("fault"), "stall:at=6:ms=never")
    await asked("echoed", bench.abort_on("arrive"), "slow_prefill:ms=never")
    await asked("error 400", faults="error:at=5:status=400")
    await asked("error 500", faults="error:at=5:status=500")
    await asked("refused", faults="error:at=0:status=503")
    await bench.asyncio(asyncio.sleep, 0.01)
    manager.enable_lora, manager.lora_registry = before
    return {"acquired": registry.acquired, "released": registry.released}


@case
async def dumps(bench: Bench) -> Any:
    folder = bench.scratch / "dumps"
    manager = bench.manager
    manager.configure_logging(
        io.ConfigureLoggingReq(
            dump_requests_folder=str(folder),
            dump_requests_threshold=len(BOTH),
            crash_dump_folder=str(bench.scratch),
        )
    )
    await bench.alike(max_new_tokens=9)
    # Written by a thread, which a task waits for.
    await bench.until(lambda: len(asyncio.all_tasks(bench.loop)) <= bench.tasks_at_rest)
    [file] = folder.glob("*.pkl")
    dumped = [_dumped(*entry) for entry in pickle.loads(file.read_bytes())["requests"]]
    crash = [_dumped(*entry) for entry in manager.crash_dump_request_list]
    manager.crash_dump_request_list.clear()
    manager.dump_requests_folder = manager.crash_dump_folder = ""
    return {"dumped": sorted(dumped), "crash": sorted(crash)}


def _dumped(obj: Any, out: Any, _created: float, _finished: float) -> list[Any]:
    meta_info = out["meta_info"]
    return [
        obj.rid.rpartition(".")[2],
        obj.text,
        obj.sampling_params["max_new_tokens"],
        meta_info["finish_reason"],
        meta_info["completion_tokens"],
    ]


# ---- control ----


STALL = "stall:at=30:ms=never"


def go_on(bench: Bench) -> None:
    """Back into the queue and out again: what stalled goes on."""
    bench.tell_scheduler(io.PauseGenerationReqInput(mode="retract"))
    bench.tell_scheduler(io.ContinueGenerationReqInput())


@case
async def pauses(bench: Bench) -> Any:
    """Each mode, with readers in flight; what comes meanwhile waits."""

    async def in_mode(mode: str) -> Any:
        waits: list[bool] = []
        runs = bench.runs(max_new_tokens=60, faults=STALL)
        late = bench.runs("late", max_new_tokens=5)
        registry = bench.manager.rid_to_state
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.together, runs)
            for run in runs:
                await bench.stalled(run, 29)
            await bench.asyncio(
                bench.manager.pause_generation, io.PauseGenerationReqInput(mode=mode)
            )
            nursery.start_soon(bench.together, late)
            await bench.until(lambda: all(run.rid in registry for run in late))
            waits += [not registry[run.rid].dispatched for run in late]
            await bench.asyncio(bench.manager.continue_generation, io.ContinueGenerationReqInput())
            if mode == "in_place":
                go_on(bench)
        return {
            "paused": {run.way: run.record() for run in runs},
            "late": {run.way: run.record() for run in late},
            "late waits": waits,
        }

    return {mode: await in_mode(mode) for mode in ("in_place", "retract", "abort")}


@case
async def weight_update(bench: Bench) -> Any:
    """It waits for tapped readers as for others, but not for who does not read."""
    ways = [*BOTH, Way.AWAY]
    manager = bench.manager
    runs = bench.runs(ways=ways, max_new_tokens=60, faults=STALL)
    late = bench.runs("late", ways=ways, max_new_tokens=5)
    update = io.UpdateWeightFromDiskReqInput(model_path="elsewhere", weight_version="v2")
    found: dict[str, Any] = {}

    async def update_weights() -> None:
        found["updated"] = (await bench.asyncio(manager.update_weights_from_disk, update))[0]
        found["unread"] = [run.way for run in runs if not run.chunks]
        for run in [*runs, *late]:
            run.may_read.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.together, runs)
        for run in runs:
            await bench.stalled(run, 29)
        nursery.start_soon(update_weights)
        await bench.until(lambda: manager.model_update_lock._waiting_writers)
        found["waits for"] = manager.model_update_lock._readers
        nursery.start_soon(bench.together, late)
        await bench.until(lambda: all(run.rid in manager.rid_to_state for run in late))
        found["late waits"] = [not manager.rid_to_state[run.rid].dispatched for run in late]
        go_on(bench)
    rids = {run.rid for run in [*runs, *late]}
    order = [
        e.get("name") or e["rid"].rpartition(".")[2]
        for e in bench.events()
        if e.get("name") == "UpdateWeightFromDiskReqInput"
        or (e["event"] in ("arrive", "finish") and e["rid"] in rids)
    ]
    cut = order.index("UpdateWeightFromDiskReqInput")
    return {
        **found,
        # Each has arrived and ended once before, and once after.
        "before": Counter(order[:cut]),
        "after": Counter(order[cut + 1 :]),
        "early": {run.way: run.record() for run in runs},
        "late": {run.way: run.record() for run in late},
    }


@case
async def health_checks(bench: Bench) -> Any:
    """As SGLang's ``/health_generate`` asks, idle and with tapped readers in flight."""

    async def check(*, idle: bool) -> list[Any]:
        manager = bench.manager
        rid = f"HEALTH_CHECK_{bench.asked}"
        request = io.GenerateReqInput(
            rid=rid,
            input_ids=[0],
            sampling_params={"max_new_tokens": 1, "temperature": 0.0},
            log_metrics=False,
        )
        before = manager.last_receive_tstamp
        answers: list[Any] = []

        async def ask() -> None:
            async for answer in manager.generate_request(request, None):
                answers.append(answer["meta_info"]["finish_reason"])
                break

        feeder = bench.engine.feeders.start(ask())
        await bench.until(lambda: manager.last_receive_tstamp > before)
        if idle:
            await feeder.wait_ended()
        feeder.cancel()
        await feeder.wait_ended()
        feeder.forget()
        manager.rid_to_state.pop(rid, None)
        return answers

    idle = await check(idle=True)
    runs = bench.runs(name="cut", max_new_tokens=1900)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.together, runs)
        await bench.until(lambda: all(run.chunks for run in runs))
        busy = await check(idle=False)
        for run in runs:
            bench.manager.abort_request(run.rid)
    return {"idle": idle, "busy": busy, "got": {run.way: run.record() for run in runs}}


# ---- running them ----


async def run_all(bench: Bench, only: Iterable[str] = ()) -> dict[str, Any]:
    """Trio. Every case once; what it saw, and what it left behind."""
    bench.tasks_at_rest = len(asyncio.all_tasks(bench.loop))
    wanted = set(only)
    results: dict[str, Any] = {}
    gc.collect()
    gc.freeze()
    gc.disable()
    for function in cases:
        name = function.__name__
        if wanted and name not in wanted:
            continue
        try:
            with trio.fail_after(PATIENCE_S):
                results[name] = await function(bench)
        except Exception:
            results[name] = {"failed": traceback.format_exc()}
        results[name] = json.loads(json.dumps(results[name], default=list))
        results[f"{name}/after"] = await left_by(bench)
    gc.enable()
    gc.unfreeze()
    return results


async def left_by(bench: Bench) -> dict[str, Any]:
    """Trio. What a case has left, once SGLang had time to end what it does by the way."""
    manager = bench.manager

    def waiting() -> list[asyncio.Task[Any]]:
        tasks = asyncio.all_tasks(bench.loop)
        return sorted(tasks, key=str)[: max(0, len(tasks) - bench.tasks_at_rest)]

    def left() -> dict[str, Any]:
        return {
            "registered": len(manager.rid_to_state),
            "flights": len(manager.flights),
            "feeders": len(bench.engine.feeders),
            "tasks": len(waiting()),
            "readers": manager.model_update_lock._readers,
        }

    with trio.move_on_after(5):
        await bench.until(lambda: not any(left().values()))
    watched = (io.GenerateReqInput, Tap, Handover, Flight, Run)
    names = {"ReqState", *(cls.__name__ for cls in watched)}
    alive = Counter(type(one).__name__ for one in gc.get_objects() if type(one).__name__ in names)
    return {**left(), "alive": alive}
