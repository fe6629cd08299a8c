# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What it costs to hand one chunk from SGLang's receive loop to a consumer, and nothing else.

`python -m tests.bench.handover_micro` from the repository's root. A producer appends one item to
each of 512 request states and sets its event, tick after tick, as SGLang's receive loop does; each
implementation's own path takes the items to a consumer that counts. No conversion, no egress, no
scheduler. Each in a process of its own, taking turns; the figure is CPU time of the main thread
in µs per chunk, median of the rounds. Tasks created per chunk are counted, not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

STREAMS = 512
TICKS = 200
ROUNDS = 5
IMPLEMENTATIONS = (
    "bare-asyncio",
    "bare-uvloop",
    "incumbent",
    "incumbent-reader",
    "ours-no-tap",
    "ours",
)


class State:
    """SGLang's ``ReqState``, as far as its receive loop touches it."""

    class Stats:
        response_sent_to_client_time = 1.0
        api_server_dispatch_finish_time = 1.0

    def __init__(self) -> None:
        self.out_list: list[dict[str, Any]] = []
        self.finished = False
        self.event: Any = asyncio.Event()
        self.time_stats = self.Stats()
        self.customized_info_accumulated: dict[str, Any] = {}


CHUNK = {"output_ids": [7], "meta_info": {"id": "r", "finish_reason": None}}


async def chunks_of(state: State) -> AsyncIterator[dict[str, Any]]:
    """SGLang's ``_stream_one_response`` without logging: wait, drain, yield."""
    while True:
        await state.event.wait()
        out_list, state.out_list = state.out_list, []
        finished = state.finished
        state.event.clear()
        for out in out_list:
            yield out
        if finished:
            return


async def produce(states: list[State], ticks: int) -> float:
    """Every tick, one output for every state; CPU seconds of this thread from first to last."""
    await asyncio.sleep(0.05)
    began = time.thread_time()
    for tick in range(ticks):
        last = tick == ticks - 1
        for state in states:
            state.out_list.append(CHUNK)
            state.finished = last
            state.event.set()
        # What asyncio's consumers need to catch up; a parked reader needs none of it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    while any(state.out_list for state in states):
        await asyncio.sleep(0)
    return time.thread_time() - began


class Tally:
    """What the consumers got, and the tasks that were created on the way."""

    def __init__(self) -> None:
        self.chunks = 0
        self.tasks = 0

    def factory(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        self.tasks += 1
        return asyncio.Task(coro, loop=loop, **options)


async def run_asyncio(
    read: Callable[[State, Tally], Any], streams: int, ticks: int
) -> dict[str, float]:
    """One consumer task a stream, as the runtime has one."""
    states = [State() for _ in range(streams)]
    tally = Tally()
    loop = asyncio.get_running_loop()
    consumers = [loop.create_task(read(state, tally)) for state in states]
    await asyncio.sleep(0.05)
    loop.set_task_factory(tally.factory)
    seconds = await produce(states, ticks)
    loop.set_task_factory(None)
    for consumer in consumers:
        await consumer
    return figures(seconds, tally, streams * ticks)


def figures(seconds: float, tally: Tally, sent: int) -> dict[str, float]:
    assert tally.chunks == sent, (tally.chunks, sent)
    return {"us_per_chunk": seconds * 1e6 / sent, "tasks_per_chunk": tally.tasks / sent}


async def read_bare(state: State, tally: Tally) -> None:
    async for _ in chunks_of(state):
        tally.chunks += 1


async def read_incumbent(state: State, tally: Tally) -> None:
    """The incumbent's ``_stream_until_cancelled``: a task and a race for each chunk."""
    from dynamo.sglang.request_handlers.cancellation import CancellationMixin

    never = asyncio.get_running_loop().create_future()
    watch = asyncio.ensure_future(_wait_for(never))
    async for _ in CancellationMixin()._stream_until_cancelled(chunks_of(state), watch):
        tally.chunks += 1
    watch.cancel()


async def read_incumbent_reader(state: State, tally: Tally) -> None:
    """The incumbent with one reader task a request, as its pull request describes it."""
    from tests.bench.incumbent_reader import stream_until_cancelled

    never = asyncio.get_running_loop().create_future()
    watch = asyncio.ensure_future(_wait_for(never))
    async for _ in stream_until_cancelled(chunks_of(state), watch):
        tally.chunks += 1
    watch.cancel()


async def _wait_for(future: asyncio.Future[Any]) -> None:
    await future


def run_ours(tapped: bool, streams: int, ticks: int) -> dict[str, float]:
    """Our handover with the request's read loop around it."""
    import trio

    from compat.handover import Handover
    from compat.loop import open_loop
    from compat.tap import Tap
    from trio_worker.responses import coalesce

    tally = Tally()

    def consume(_chunk: dict[str, Any]) -> None:
        tally.chunks += 1

    async def reader(handover: Handover) -> None:
        with trio.CancelScope():
            while True:
                try:
                    chunks = await handover.receive()
                except trio.EndOfChannel:
                    return
                for chunk in chunks:
                    consume(chunk)

    async def feed(state: State, handover: Handover) -> None:
        try:
            if tapped:
                tap = Tap(state, handover, coalesce, 64)
                state.event = handover.tap = tap
                await tap.wait()
                state.event = asyncio.Event()
                handover.tap = None
                state.event.set()
            async for chunk in chunks_of(state):
                handover.put(chunk)
        finally:
            handover.close()

    async def main() -> dict[str, float]:
        async with open_loop() as loop, trio.open_nursery() as nursery:
            states = [State() for _ in range(streams)]
            for state in states:
                handover = Handover(64)
                handover.deliver = consume
                nursery.start_soon(reader, handover)
                loop.create_task(feed(state, handover))
            await trio.sleep(0.05)
            loop.set_task_factory(tally.factory)
            seconds = await loop.run_aio_coroutine(produce(states, ticks))
        # The producer itself is one task.
        tally.tasks -= 1
        return figures(seconds, tally, streams * ticks)

    return trio.run(main)


def run_one(name: str, streams: int, ticks: int) -> dict[str, float]:
    """One implementation, in this process."""
    if name.startswith("ours"):
        return run_ours(name == "ours", streams, ticks)
    readers = {
        "bare-asyncio": read_bare,
        "bare-uvloop": read_bare,
        "incumbent": read_incumbent,
        "incumbent-reader": read_incumbent_reader,
    }
    if name == "bare-asyncio":
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
    else:
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run_asyncio(readers[name], streams, ticks))


def measure(
    rounds: int = ROUNDS,
    ticks: int = TICKS,
    streams: int = STREAMS,
    progress: Callable[[str], object] = lambda _line: None,
) -> dict[str, Any]:
    """All implementations, taking turns: medians, spreads, and ours as multiples of the bare loop.

    ``handover_vs_bare`` is ours with the tap divided by a bare ``async for`` on asyncio's loop.
    """
    progress("handover: starting each implementation (the incumbent's imports take 20 s)")
    apart = {name: _Apart(name, streams, ticks) for name in IMPLEMENTATIONS}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in IMPLEMENTATIONS}
    for process in apart.values():
        process.wait_ready()
    for number in range(rounds):
        for name in IMPLEMENTATIONS:
            progress(f"handover, round {number + 1} of {rounds}: {name}")
            runs[name].append(apart[name].measure())
    for process in apart.values():
        process.close()
    cost = {
        name: statistics.median(run["us_per_chunk"] for run in done) for name, done in runs.items()
    }
    return {
        "microseconds": cost,
        "spread": {name: _spread(done) for name, done in runs.items()},
        "tasks_per_chunk": {name: done[0]["tasks_per_chunk"] for name, done in runs.items()},
        "multiple_of_bare": {name: value / cost["bare-asyncio"] for name, value in cost.items()},
        "summary": {
            "handover_vs_bare": cost["ours"] / cost["bare-asyncio"],
            "tasks_per_chunk": runs["ours"][0]["tasks_per_chunk"],
        },
    }


def _spread(runs: list[dict[str, float]]) -> list[float]:
    costs = [run["us_per_chunk"] for run in runs]
    return [min(costs), max(costs)]


class _Apart:
    """One implementation in a process of its own, which measures once for each line it gets."""

    def __init__(self, name: str, streams: int, ticks: int) -> None:
        command = [sys.executable, "-m", "tests.bench.handover_micro", "--only", name]
        self._process = subprocess.Popen(
            [*command, "--streams", str(streams), "--ticks", str(ticks)],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def measure(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("go", file=self._process.stdin, flush=True)
        result: dict[str, float] = json.loads(self._process.stdout.readline())
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ticks", type=int, default=TICKS)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--only", choices=IMPLEMENTATIONS)
    options = parser.parse_args()
    if options.only:
        # Paid before the first round.
        if options.only.startswith("incumbent"):
            import dynamo.sglang.request_handlers.cancellation  # noqa: F401
        if options.only.startswith("ours"):
            import trio_worker.responses  # noqa: F401
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(run_one(options.only, options.streams, options.ticks)), flush=True)
        return
    result = measure(
        options.rounds,
        options.ticks,
        options.streams,
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
