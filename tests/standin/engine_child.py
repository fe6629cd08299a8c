# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""A real SGLang engine on the stand-in scheduler, in a process of its own.

    python -m tests.standin.engine_child SCRATCH RESULT

Runs every case once on one engine and writes what happened to RESULT as JSON; test_engine.py
asserts on it. SGLang sets asyncio's loop policy at import, so none of this may run in pytest.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

SCRIPT = "step_ms=4,max_running=8,queue_limit=2"
PATIENCE_S = 60.0


class Cases:
    """One method a case; asyncio, in the engine's loop. Each returns something JSON can say."""

    def __init__(self, engine: Any, log: Path) -> None:
        self.engine = engine
        self.manager = engine.tokenizer_manager
        self.log = log

    async def chunks(
        self, prompt: str | list[str], rid: str | None = None, faults: str = "", **sampling: Any
    ) -> list[dict[str, Any]]:
        return [chunk async for chunk in await self.start(prompt, rid, faults, **sampling)]

    async def start(
        self, prompt: str | list[str], rid: str | None = None, faults: str = "", **sampling: Any
    ) -> Any:
        options = {k: sampling.pop(k) for k in [*sampling] if k in _REQUEST_OPTIONS}
        if faults:
            sampling["custom_params"] = {"stand_in": faults}
        return await self.engine.async_generate(
            prompt=prompt, sampling_params=sampling, stream=True, rid=rid, **options
        )

    async def plain(self, *args: Any, **sampling: Any) -> dict[str, Any]:
        return summary(await self.chunks(*args, **sampling))

    async def streaming(self) -> Any:
        whole = await self.plain("hello", max_new_tokens=40)
        resumed = await self.plain("hello" + whole["text"][:13], max_new_tokens=27)
        return {"whole": whole, "resumed": resumed}

    async def not_streaming(self) -> Any:
        out = await self.engine.async_generate(
            prompt="hello", sampling_params={"max_new_tokens": 120}
        )
        return summary([out])

    async def stops(self) -> Any:
        return {
            "string": await self.plain("hello", max_new_tokens=40, stop=["klm"]),
            "token": await self.plain("hello", max_new_tokens=40, stop_token_ids=[67]),
        }

    async def abort(self) -> Any:
        chunks = []
        async for chunk in await self.start("hello", "abort-me", max_new_tokens=1000):
            chunks.append(chunk)
            if len(chunks) == 5:
                self.manager.abort_request("abort-me")
        return summary(chunks)

    async def abort_queued(self) -> Any:
        """Eight run, one waits and is aborted, and a full queue refuses the eleventh."""
        running = [
            asyncio.create_task(self.chunks("hello", f"runs-{i}", max_new_tokens=1000))
            for i in range(8)
        ]
        await self.until(lambda: self.events("start", "runs-"), 8)
        waiting = [
            asyncio.create_task(self.chunks("hello", f"waits-{i}", max_new_tokens=1000))
            for i in range(2)
        ]
        await self.until(lambda: self.events("arrive", "waits-"), 2)
        refused = await self.plain("hello", "refused", max_new_tokens=5)
        [state] = await self.manager.get_internal_state()
        self.manager.abort_request("waits-1")
        echoed = summary(await waiting[1])
        self.manager.abort_request(abort_all=True)
        ends = [summary(await task)["finish"]["type"] for task in [*running, waiting[0]]]
        return {"refused": refused, "echoed": echoed, "ends": ends, "gauges": state["stand_in"]}

    async def parallel(self) -> Any:
        found: dict[int, list[Any]] = {}
        for chunk in await self.chunks("hello", "n3", n=3, temperature=0.5, max_new_tokens=9):
            found.setdefault(chunk["index"], []).append(chunk)
        return {index: summary(chunks) for index, chunks in found.items()}

    async def batch(self) -> Any:
        found: dict[int, list[Any]] = {}
        for chunk in await self.chunks(["a", "bcd"], max_new_tokens=6):
            found.setdefault(chunk["index"], []).append(chunk)
        return {index: summary(chunks) for index, chunks in found.items()}

    async def logprobs(self) -> Any:
        chunks = await self.chunks(
            "hello",
            max_new_tokens=3,
            return_logprob=True,
            top_logprobs_num=2,
            logprob_start_len=0,
            token_ids_logprob=[70],
        )
        return {"all": summary(chunks), "metas": [chunk["meta_info"] for chunk in chunks]}

    async def errors(self) -> Any:
        kinds = {
            "400": "error:at=3:status=400:type=BadRequestError:message=bad",
            "500": "error:at=3:status=500",
            "503": "error:at=1:status=503",
            "none": "error:at=3",
            "arrival": "error:at=0:status=400",
            "nonsense": "bang:at=3",
        }
        return {
            name: await self.plain("hello", max_new_tokens=9, faults=text)
            for name, text in kinds.items()
        }

    async def burst(self) -> Any:
        return await self.plain("hello", max_new_tokens=80, faults="burst:at=10:size=50")

    async def hang(self) -> Any:
        return await self.plain("hello", max_new_tokens=8, faults="hang:at=4:ms=100")

    async def retraction(self) -> Any:
        chunks = await self.chunks("hello", max_new_tokens=8, faults="retract:at=4:times=2:ms=5")
        empty = [chunk for chunk in chunks if not chunk["output_ids"]]
        return {
            "all": summary(chunks),
            "empty": [chunk["meta_info"]["finish_reason"] for chunk in empty],
            "retractions": [chunk["meta_info"]["num_retractions"] for chunk in chunks],
        }

    async def ignored_abort(self) -> Any:
        chunks = []
        async for chunk in await self.start(
            "hello", "deaf", max_new_tokens=30, faults="ignore_abort"
        ):
            chunks.append(chunk)
            if len(chunks) == 3:
                self.manager.abort_request("deaf")
        return summary(chunks)

    async def slow_dispatch(self) -> Any:
        request = asyncio.create_task(
            self.chunks("hello", "slow", max_new_tokens=3, faults="delay_dispatch:ms=200")
        )
        await self.until(lambda: ["slow"] if "slow" in self.manager.rid_to_state else [], 1)
        dispatched_at_once = self.manager.rid_to_state["slow"].dispatched
        return {"dispatched_at_once": dispatched_at_once, "all": summary(await request)}

    async def control(self) -> Any:
        from sglang.srt.managers import io_struct as io

        manager = self.manager
        running = asyncio.create_task(self.chunks("hello", "paused", max_new_tokens=60))
        await self.until(lambda: self.events("start", "paused"), 1)
        busy_flush = await manager.flush_cache()
        await manager.pause_generation(io.PauseGenerationReqInput(mode="retract"))
        [state] = await manager.get_internal_state()
        paused = state["stand_in"]
        await manager.continue_generation(io.ContinueGenerationReqInput())
        flush = await manager.flush_cache(timeout_s=30)
        answers: dict[str, Any] = {
            "busy_flush": busy_flush.success,
            "flush": flush.success,
            "paused": paused,
            "resumed": summary(await running),
        }
        await manager.release_memory_occupation(io.ReleaseMemoryOccupationReqInput())
        await manager.resume_memory_occupation(io.ResumeMemoryOccupationReqInput())
        await manager.start_profile()
        await manager.stop_profile()
        await manager.slow_down(io.SlowDownReqInput(forward_sleep_time=0.0))
        await manager.update_weight_version(io.UpdateWeightVersionReqInput(new_version="v7"))
        answers["disk"] = (
            await manager.update_weights_from_disk(
                io.UpdateWeightFromDiskReqInput(model_path="elsewhere")
            )
        )[0]
        tensors = io.UpdateWeightsFromTensorReqInput(serialized_named_tensors=[b""])
        answers["outside"] = (await manager.update_weights_from_tensor(tensors))[0]
        await manager.begin_weight_update(io.BeginWeightUpdateReqInput())
        answers["inside"] = (await manager.update_weights_from_tensor(tensors))[0]
        await manager.end_weight_update(io.EndWeightUpdateReqInput())
        session = io.OpenSessionReqInput(capacity_of_str_len=10, session_id="s1")
        answers["session"] = await manager.open_session(session)
        answers["no_session"] = await self.plain("hello", session_params={"id": "s2"})
        answers["session_request"] = await self.plain(
            "hello", max_new_tokens=2, session_params={"id": "s1"}
        )
        await manager.close_session(io.CloseSessionReqInput(session_id="s1"))
        await manager.freeze_gc()
        manager._dispatch_to_scheduler(io.SeparateReasoningReqInput(text="x", reasoning_parser="y"))
        await self.until(lambda: self.events("unknown"), 1)
        answers["version"] = (await self.chunks("hello", max_new_tokens=2))[-1]["meta_info"][
            "weight_version"
        ]
        return answers

    async def health_checks(self) -> Any:
        """Idle, it is a request like any other; busy, it is answered without being queued."""
        from sglang.srt.managers import io_struct as io

        idle = await self.plain("x", "HEALTH_CHECK_0", max_new_tokens=1)
        busy = asyncio.create_task(self.chunks("hello", "busy", max_new_tokens=1000))
        await self.until(lambda: self.events("start", "busy"), 1)
        answered = asyncio.Event()
        handlers = self.manager._result_dispatcher._mapping
        handlers[io.HealthCheckOutput] = lambda _: answered.set()
        probe = asyncio.create_task(self.chunks("x", "HEALTH_CHECK_1", max_new_tokens=1))
        await answered.wait()
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        self.manager.abort_request("busy")
        return {
            "idle": idle,
            "arrived": len(self.events("arrive", "HEALTH_CHECK_")),
            "busy": summary(await busy)["finish"],
        }

    def events(self, kind: str, rid: str = "") -> list[dict[str, Any]]:
        from trio_worker.standin.events import read_events

        return [e for e in read_events(self.log, kind) if str(e.get("rid", "")).startswith(rid)]

    async def until(self, found: Callable[[], list[Any]], count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(found()) < count:
                await asyncio.sleep(0.01)


_REQUEST_OPTIONS = frozenset(
    {
        "return_logprob",
        "top_logprobs_num",
        "logprob_start_len",
        "token_ids_logprob",
        "session_params",
    }
)


def summary(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    meta = chunks[-1]["meta_info"]
    return {
        "text": "".join(chunk["text"] for chunk in chunks),
        "ids": [token for chunk in chunks for token in chunk["output_ids"]],
        "finish": meta["finish_reason"],
        "early_ends": sum(c["meta_info"]["finish_reason"] is not None for c in chunks[:-1]),
        "completion_tokens": meta.get("completion_tokens"),
        "prompt_tokens": meta.get("prompt_tokens"),
        "chunks": len(chunks),
    }


async def run_all(cases: Cases) -> dict[str, Any]:
    names = [name for name in vars(Cases) if not name.startswith("_") and name not in _HELPERS]
    results = {}
    for name in names:
        case: Callable[[], Awaitable[Any]] = getattr(cases, name)
        async with asyncio.timeout(PATIENCE_S):
            results[name] = await case()
        [state] = await cases.manager.get_internal_state()
        results[name + "/after"] = {
            "registry": len(cases.manager.rid_to_state),
            "running": state["stand_in"]["running"],
            "waiting": state["stand_in"]["waiting"],
        }
    return results


_HELPERS = frozenset({"chunks", "start", "plain", "events", "until"})


async def shut_down(engine: Any) -> int:
    """ShutdownReq, and the scheduler's exit status."""
    from multiprocessing import active_children

    from sglang.srt.managers import io_struct as io

    scheduler = engine.get_all_child_pids()[0]
    [process] = [child for child in active_children() if child.pid == scheduler]
    # Its watchdog takes any exit for a crash.
    engine.tokenizer_manager._subprocess_watchdog.stop()
    engine.tokenizer_manager._dispatch_to_scheduler(io.ShutdownReq())
    await asyncio.to_thread(process.join, PATIENCE_S)
    assert process.exitcode is not None
    return process.exitcode


def main(scratch: Path, result: Path) -> None:
    import dataclasses

    from sglang.srt.entrypoints.engine import Engine

    from tests.standin.tiny_model import write_tiny_model
    from trio_worker.standin.events import read_events
    from trio_worker.standin.install import install
    from trio_worker.standin.script import parse_script
    from trio_worker.standin.tokenizer import delay_tokenizer

    log = scratch / "events.jsonl"
    script = dataclasses.replace(parse_script(SCRIPT), log=str(log))
    install(script)
    engine = Engine(
        model_path=str(write_tiny_model(scratch / "model")),
        device="cpu",
        incremental_streaming_output=True,
        log_level="error",
    )
    delay_tokenizer(engine.tokenizer_manager, script)
    results = engine.loop.run_until_complete(run_all(Cases(engine, log)))
    results["exit_status"] = engine.loop.run_until_complete(shut_down(engine))
    results["events"] = read_events(log)
    result.write_text(json.dumps(results))
    engine.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
