# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make serve`` and ``make smoke``: from nothing to an answered chat request, and back."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from trio_worker.quickstart.chat import HOST, Answer, chat
from trio_worker.quickstart.cluster import (
    CPU_ENGINE_ARGS,
    READY_LINE,
    Cluster,
    PortInUse,
    Process,
    ProcessDied,
    open_cluster,
)
from trio_worker.quickstart.recitation import PASSAGE, BuildFailed, obtain_model

RECITE = ("Please recite the passage.", len(PASSAGE) + 100)
SAY_HELLO = ("Say hello.", 100)
"""What is asked, and how many tokens the answer may have."""

INTERRUPTED = 130
"""Exit status of a smoke test that was stopped before its end, as a shell gives it."""

MILESTONES = (
    ("", "importing SGLang and Dynamo (half a minute)"),
    ("dynamo runtime configuration", "imported; connecting to discovery"),
    ("launch_subprocesses", "starting the engine's processes, which import SGLang again"),
    ("Load weight begin", "loading the model"),
    ("Load weight end", "model loaded; allocating the KV cache"),
    ("Engine startup timings", "engine is up; registering"),
    (READY_LINE, "registered; waiting for the frontend to see it"),
)
"""What the worker logs, and what that means; in this order."""

STILL_S = 10.0
"""Seconds after which the launcher repeats what it is waiting for."""


class Clock:
    """Says what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = trio.current_time()

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"[{trio.current_time() - self._started:5.1f} s] {text}", flush=True)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Pure but for usage errors. The launcher's options, and the worker's behind ``--``."""
    argv = list(argv)
    worker_args: list[str] = []
    if "--" in argv:
        cut = argv.index("--")
        argv, worker_args = argv[:cut], argv[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m trio_worker.quickstart")
    parser.add_argument("--smoke", action="store_true", help="one request, then an ordered stop")
    parser.add_argument("--model", help="another model: a folder, or a name on a hub")
    parser.add_argument("--port", type=int, default=None, help="HTTP port of the frontend")
    parser.add_argument("--worker", default="trio_worker", help="module of the worker")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    return parser.parse_args(argv), worker_args


@dataclass
class Stopped:
    """How the cluster ended; a session that is cancelled can't return it."""

    well: bool = True


async def run(options: argparse.Namespace, worker_args: Sequence[str]) -> int:
    """Trio. The launcher's exit status."""
    clock = Clock()
    stopped = Stopped()
    status = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as stops:
        async with trio.open_nursery() as nursery:

            async def session() -> None:
                nonlocal status
                try:
                    status = await _session(clock, options, worker_args, stopped)
                except (BuildFailed, PortInUse, ProcessDied, trio.TooSlowError) as error:
                    print(str(error) or "too slow: see the logs", file=sys.stderr)
                    status = 1
                nursery.cancel_scope.cancel()

            nursery.start_soon(session)
            async for number in stops:
                clock.say(signal.Signals(number).name)
                nursery.cancel_scope.cancel()
    if status is None:  # stopped on request: that is how serving ends, and not how a test ends
        status = INTERRUPTED if options.smoke else 0
    return status if stopped.well else status or 1


async def _session(
    clock: Clock, options: argparse.Namespace, worker_args: Sequence[str], stopped: Stopped
) -> int:
    recites = options.model is None
    model = options.model or await obtain_model(clock.say)
    async with open_cluster(
        model,
        model_name="recitation" if recites else str(options.model),
        port=options.port,
        keep=options.logs,
    ) as cluster:
        try:
            clock.say(f"frontend starts on http://{HOST}:{cluster.port}")
            await cluster.start_frontend()
            await cluster.wait_frontend()
            # A GPU, if there is one, is for models that somebody has named.
            args = [*(CPU_ENGINE_ARGS if recites else ()), *worker_args]
            clock.say(f"frontend answers; worker starts: python -m {options.worker}")
            worker = await cluster.start_worker(*args, module=options.worker)
            await _wait_ready(cluster, worker, clock)
            answer = await _ask(cluster, clock, *(RECITE if recites else SAY_HELLO))
            right = answer.done and not answer.errors
            if recites:
                right = right and answer.text == PASSAGE
                clock.say("the answer is word for word right" if right else "the answer is WRONG")
            if not options.smoke:
                _invite(cluster)
                await cluster.wait_any_death()
            return 0 if right else 1
        finally:
            stopped.well = await _orderly_stop(cluster, clock, options.smoke)


def milestone(output: str) -> int:
    """The last of MILESTONES that `output` shows."""
    return max(index for index, (line, _) in enumerate(MILESTONES) if line in output)


async def _wait_ready(cluster: Cluster, worker: Process, clock: Clock) -> None:
    """Trio. Say what the worker is doing until the frontend lists its model."""
    told = -1
    last = trio.current_time()
    while not await cluster.lists_model():
        for process in cluster.members:
            process.raise_if_dead()
        reached = milestone(worker.output())
        if reached > told:
            clock.say(f"worker: {MILESTONES[reached][1]}")
        elif trio.current_time() - last >= STILL_S:
            clock.say(f"worker: still {MILESTONES[reached][1]}")
        else:
            await trio.sleep(0.2)
            continue
        told = reached
        last = trio.current_time()
    clock.say("the frontend lists the model")


async def _ask(cluster: Cluster, clock: Clock, question: str, max_tokens: int) -> Answer:
    clock.say(f"asking: {question}")

    def show(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    answer = await chat(
        cluster.port,
        cluster.model_name,
        question,
        max_tokens=max_tokens,
        temperature=0,
        on_text=show,
    )
    print(flush=True)
    for error in answer.errors:
        clock.say(f"error: {error}")
    return answer


def _invite(cluster: Cluster) -> None:
    print(
        f"""
Ready: http://{HOST}:{cluster.port}/v1

    curl -N http://{HOST}:{cluster.port}/v1/chat/completions \\
      -H 'Content-Type: application/json' \\
      -d '{{"model": "{cluster.model_name}", "stream": true, "max_tokens": 1500,
           "temperature": 0, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

Logs: {cluster.folder}. Ctrl-C stops the worker, then the frontend.""",
        flush=True,
    )


async def _orderly_stop(cluster: Cluster, clock: Clock, strict: bool) -> bool:
    """Trio, shielded. Worker first, then the frontend; whether all ended well.

    Unless `strict`, it is well too if our SIGTERM ended a process that was still importing.
    """
    with trio.CancelScope(shield=True):
        clock.say("stopping the worker, then the frontend")
        statuses = await cluster.stop_all()
        for name, status in statuses.items():
            clock.say(f"{name} ended, status {status}")
        left = cluster.left_behind()
        clock.say(f"processes left behind: {left or 'none'}")
    asked_for = {0} if strict else {0, -signal.SIGTERM}
    return not left and asked_for.issuperset(statuses.values())


def main() -> None:
    """Neither flavour. The launcher's command line."""
    options, worker_args = parse(sys.argv[1:])
    raise SystemExit(trio.run(run, options, worker_args))


if __name__ == "__main__":
    main()
