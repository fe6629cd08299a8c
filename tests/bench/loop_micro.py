# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""What one callback costs on our loop, on asyncio's, on uvloop and on trio-asyncio's.

`python -m tests.bench.loop_micro` from the repository's root prints one line a case, with
ratios. Each loop runs in a process of its own (importing trio-asyncio patches asyncio), the
loops take turns, and the figure is the median of the rounds. Measured is the CPU time of the
loop's thread in µs, which a busy machine disturbs less than wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LOOPS = ("ours", "asyncio", "uvloop", "trio-asyncio")
ROUNDS = 5

Case = Callable[[int], Awaitable[None]]


def _nothing() -> None: ...


async def call_soon(count: int) -> None:
    """A hundred callbacks at a time."""
    loop = asyncio.get_running_loop()
    for _ in range(count // 100):
        for _ in range(100):
            loop.call_soon(_nothing)
        await asyncio.sleep(0)


async def call_soon_threadsafe(count: int) -> None:
    """The same, called on the loop's own thread."""
    loop = asyncio.get_running_loop()
    for _ in range(count // 100):
        for _ in range(100):
            loop.call_soon_threadsafe(_nothing)
        await asyncio.sleep(0)


async def _chain(count: int, queue: Callable[[Callable[[], None]], object]) -> None:
    left = count
    done = asyncio.get_running_loop().create_future()

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            queue(again)
        else:
            done.set_result(None)

    queue(again)
    await done


async def call_soon_chain(count: int) -> None:
    """Each callback queues the next: nothing to batch."""
    await _chain(count, asyncio.get_running_loop().call_soon)


async def call_later_zero_chain(count: int) -> None:
    """The same through timers that are due at once, as pyzmq queues them."""
    loop = asyncio.get_running_loop()
    await _chain(count, lambda callback: loop.call_later(0, callback))


async def task_switch(count: int) -> None:
    """A task that yields with `sleep(0)`."""
    for _ in range(count):
        await asyncio.sleep(0)


async def event_wake(count: int) -> None:
    """A task that waits for an event which another one sets, one round trip."""
    here, there = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        for _ in range(count):
            await there.wait()
            there.clear()
            here.set()

    # The task of a script that ends with it.
    task = asyncio.ensure_future(other())
    for _ in range(count):
        there.set()
        await here.wait()
        here.clear()
    await task


async def thread_wake(count: int) -> None:
    """Another thread wakes the sleeping loop, which answers."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    answered = threading.Semaphore(0)

    def thread() -> None:
        for _ in range(count):
            loop.call_soon_threadsafe(answered.release)
            answered.acquire()
        loop.call_soon_threadsafe(done.set_result, None)

    threading.Thread(target=thread, daemon=True).start()
    await done


async def descriptor_wake(count: int) -> None:
    """A descriptor becomes readable while the loop sleeps."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    left = count

    def readable() -> None:
        nonlocal left
        ours.recv(1)
        left -= 1
        if left:
            theirs.send(b"x")
        else:
            loop.remove_reader(ours)
            done.set_result(None)

    with ours, theirs:
        loop.add_reader(ours, readable)
        theirs.send(b"x")
        await done


async def zmq_stream(count: int) -> None:
    """Messages that are queued already (sending included)."""
    await _zmq(count, burst=500)


async def zmq_ping(count: int) -> None:
    """Messages into a receiver that waits (sending included)."""
    await _zmq(count, burst=1)


async def _zmq(count: int, burst: int) -> None:
    import zmq
    import zmq.asyncio

    context = zmq.Context()
    ours = zmq.asyncio.Context(context).socket(zmq.PULL)
    theirs = context.socket(zmq.PUSH)
    ours.bind("inproc://loop")
    theirs.connect("inproc://loop")
    try:
        for _ in range(count // burst):
            first = ours.recv()
            await asyncio.sleep(0)
            for _ in range(burst):
                theirs.send(b"x" * 200)
            await first
            for _ in range(burst - 1):
                await ours.recv()
    finally:
        ours.close(0)
        theirs.close(0)
        context.term()


CASES: dict[str, tuple[Case, int]] = {
    "call_soon": (call_soon, 200_000),
    "call_soon_threadsafe": (call_soon_threadsafe, 100_000),
    "call_soon_chain": (call_soon_chain, 100_000),
    "call_later_zero_chain": (call_later_zero_chain, 50_000),
    "task_switch": (task_switch, 100_000),
    "event_wake": (event_wake, 30_000),
    "thread_wake": (thread_wake, 5_000),
    "descriptor_wake": (descriptor_wake, 20_000),
    "zmq_stream": (zmq_stream, 30_000),
    "zmq_ping": (zmq_ping, 5_000),
}


async def asyncio_calls_trio(count: int) -> None:
    """An asyncio task awaits a Trio function: there and back."""
    import trio

    loop: Any = asyncio.get_running_loop()
    for _ in range(count):
        await loop.trio_as_future(trio.lowlevel.checkpoint)


async def trio_calls_asyncio(count: int) -> None:
    """A Trio function awaits an asyncio coroutine: there and back."""
    loop: Any = asyncio.get_running_loop()

    async def calls() -> None:
        for _ in range(count):
            await loop.run_aio_coroutine(asyncio.sleep(0))

    await loop.trio_as_future(calls)


CROSSINGS: dict[str, tuple[Case, int]] = {
    "asyncio_calls_trio": (asyncio_calls_trio, 5_000),
    "trio_calls_asyncio": (trio_calls_asyncio, 5_000),
}


async def _run_cases(scale: float, cases: dict[str, tuple[Case, int]]) -> dict[str, float]:
    figures = {}
    for name, (case, full) in cases.items():
        count = max(1000, int(full * scale) // 1000 * 1000)
        await case(1000)
        start = time.thread_time()
        await case(count)
        figures[name] = (time.thread_time() - start) / count * 1e6
    return figures


def _run_on(loop_name: str, scale: float) -> dict[str, float]:
    if loop_name == "asyncio":
        return asyncio.run(_run_cases(scale, CASES))
    if loop_name == "uvloop":
        import uvloop

        return uvloop.run(_run_cases(scale, CASES))  # type: ignore[no-any-return]

    import trio
    import trio_asyncio

    from compat.loop import open_loop

    opened = open_loop() if loop_name == "ours" else trio_asyncio.open_loop()

    async def main() -> dict[str, float]:
        async with opened as loop:
            figures: dict[str, float] = await loop.run_aio_coroutine(
                _run_cases(scale, CASES | CROSSINGS)
            )
            return figures

    return trio.run(main)


def _run_apart(loop_name: str, scale: float) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.loop_micro"]
    done = subprocess.run(
        [*command, "--only", loop_name, "--scale", str(scale)],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(
    rounds: int = ROUNDS,
    scale: float = 1.0,
    progress: Callable[[str], object] = lambda _line: None,
) -> dict[str, Any]:
    """All figures of all loops, interleaved; about 10 s a round at full scale.

    Returns `microseconds` and `spread` (least and most), by loop and case; `ratio`, ours divided
    by the other's, by loop and case; and `summary`. The two crossings between the flavours exist
    only on the loops that run on Trio.
    """
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for number in range(rounds):
        for name in LOOPS:
            progress(f"round {number + 1} of {rounds}: {name}")
            runs[name].append(_run_apart(name, scale))
    by_case = {
        name: {case: [run[case] for run in runs[name]] for case in runs[name][0]} for name in LOOPS
    }
    medians = {
        name: {case: statistics.median(values) for case, values in cases.items()}
        for name, cases in by_case.items()
    }
    ratio = {
        name: {case: medians["ours"][case] / value for case, value in medians[name].items()}
        for name in LOOPS[1:]
    }
    return {
        "microseconds": medians,
        "spread": {
            name: {case: [min(values), max(values)] for case, values in cases.items()}
            for name, cases in by_case.items()
        },
        "ratio": ratio,
        "summary": {"loop_callback_vs_asyncio": ratio["asyncio"]["call_soon"]},
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The result as one line a case: µs, and ours as a multiple of each other loop."""
    text = []
    for case, ours in result["microseconds"]["ours"].items():
        others = (
            f"{name} {result['microseconds'][name][case]:7.2f} ({ratio[case]:.2f}x)"
            for name, ratio in result["ratio"].items()
            if case in ratio
        )
        text.append(f"{case:22} ours {ours:7.2f} µs   " + "   ".join(others))
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--only", choices=LOOPS, help="one loop, in this process, as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(_run_on(options.only, options.scale)))
        return
    result = measure(
        options.rounds, options.scale, lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(json.dumps(result, indent=2) if options.json else "\n".join(lines(result)))


if __name__ == "__main__":
    main()
