# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make serve`` and ``make smoke``: from nothing to an answered chat request, and back."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from trio_worker.quickstart.chat import HOST, Answer, chat
from trio_worker.quickstart.cluster import (
    CPU_ENGINE_ARGS,
    READY_LINE,
    Cluster,
    Process,
    ProcessDied,
    open_cluster,
)
from trio_worker.quickstart.recitation import PASSAGE, recitation_model

QUESTION = "Please recite the passage."

MILESTONES = (
    ("dynamo runtime configuration", "imports done, connecting to discovery"),
    ("Launch", "loading the model"),
    ("Metrics loop started", "engine is up, registering"),
    (READY_LINE, "registered"),
)


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
    parser.add_argument("--model", type=Path, help="folder of another model")
    parser.add_argument("--port", type=int, default=None, help="HTTP port of the frontend")
    parser.add_argument("--worker", default="trio_worker", help="module of the worker")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    return parser.parse_args(argv), worker_args


async def run(options: argparse.Namespace, worker_args: Sequence[str]) -> int:
    """Trio. The launcher's exit status."""
    clock = Clock()
    recites = options.model is None
    model = options.model or await trio.to_thread.run_sync(recitation_model, clock.say)
    # A GPU, if there is one, is for models that somebody has named.
    args = [*(CPU_ENGINE_ARGS if recites else ()), *worker_args]
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as stops:
        async with (
            open_cluster(
                model,
                model_name="recitation" if recites else model.name,
                port=options.port,
                keep=options.logs,
            ) as cluster,
            trio.open_nursery() as nursery,
        ):
            status = 1

            async def session() -> None:
                nonlocal status
                status = await _session(cluster, clock, options, args, recites)
                nursery.cancel_scope.cancel()

            nursery.start_soon(session)
            async for _ in stops:
                status = 0 if not options.smoke else 130
                nursery.cancel_scope.cancel()
        # The block above has stopped what was left; orderly() says how.
        return status


async def _session(
    cluster: Cluster,
    clock: Clock,
    options: argparse.Namespace,
    args: Sequence[str],
    recites: bool,
) -> int:
    try:
        await cluster.start_frontend()
        clock.say(f"frontend starts on http://{HOST}:{cluster.port}")
        worker = await cluster.start_worker(*args, module=options.worker)
        clock.say(f"worker starts (python -m {options.worker}); imports take 20 to 40 seconds")
        await _wait_ready(cluster, worker, clock)
        answer = await _ask(cluster, clock)
    except ProcessDied as error:
        print(error, file=sys.stderr)
        return 1
    right = answer.done and not answer.errors and (not recites or answer.text == PASSAGE)
    if not options.smoke:
        _invite(cluster)
        try:
            await worker.popen.wait()
            clock.say(f"the worker ended by itself, status {worker.returncode}")
            print(worker.tail(), file=sys.stderr)
            return 1
        finally:
            await _orderly_stop(cluster, clock)
    clock.say(f"the answer is {'word for word right' if right else 'WRONG'}")
    stopped_well = await _orderly_stop(cluster, clock)
    return 0 if right and stopped_well else 1


async def _wait_ready(cluster: Cluster, worker: Process, clock: Clock) -> None:
    """Trio. Say what the worker is doing until it has registered and the frontend knows."""
    told = 0
    last = trio.current_time()
    while READY_LINE not in (output := worker.output()):
        for line, meaning in MILESTONES[told:]:
            if line in output:
                clock.say(f"worker: {meaning}")
                told += 1
                last = trio.current_time()
        if worker.popen.poll() is not None:
            raise ProcessDied(f"the worker ended, status {worker.returncode}:\n{worker.tail()}")
        if trio.current_time() - last > 10:
            clock.say("still waiting for the worker")
            last = trio.current_time()
        await trio.sleep(0.2)
    await cluster.wait_model()
    clock.say("the frontend lists the model")


async def _ask(cluster: Cluster, clock: Clock) -> Answer:
    clock.say(f"asking: {QUESTION}")

    def show(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    answer = await chat(
        cluster.port, cluster.model_name, QUESTION, max_tokens=1900, temperature=0, on_text=show
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
      -d '{{"model": "{cluster.model_name}", "stream": true, "max_tokens": 1900,
           "temperature": 0, "messages": [{{"role": "user", "content": "Please recite."}}]}}'

Logs: {cluster.folder}. Ctrl-C stops the worker, then the frontend.""",
        flush=True,
    )


async def _orderly_stop(cluster: Cluster, clock: Clock) -> bool:
    """Trio, shielded. Worker first, then the frontend; whether all ended well."""
    with trio.CancelScope(shield=True):
        clock.say("stopping the worker, then the frontend")
        statuses = await cluster.stop_all()
        for name, status in statuses.items():
            clock.say(f"{name} ended, status {status}")
        left = cluster.left_behind()
        clock.say(f"processes left behind: {left or 'none'}")
    return not left and not any(statuses.values())


def main() -> None:
    """Neither flavour. The launcher's command line."""
    options, worker_args = parse(sys.argv[1:])
    raise SystemExit(trio.run(run, options, worker_args))


if __name__ == "__main__":
    main()
