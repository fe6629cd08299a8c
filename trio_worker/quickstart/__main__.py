# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make serve``, ``make smoke`` and ``make demo``: from nothing to an answer, and back."""

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
    Cluster,
    PortInUse,
    ProcessDied,
    open_cluster,
)
from trio_worker.quickstart.progress import Clock, Stopped, orderly_stop, tell_start
from trio_worker.quickstart.recitation import PASSAGE, BuildFailed, obtain_model

RECITE = ("Please recite the passage.", len(PASSAGE) + 100)
SAY_HELLO = ("Say hello.", 100)
"""What is asked, and how many tokens the answer may have."""

INTERRUPTED = 130
"""Exit status of a smoke test or demo that was stopped before its end, as a shell gives it."""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Pure but for usage errors. The launcher's options, and the worker's behind ``--``."""
    argv = list(argv)
    worker_args: list[str] = []
    if "--" in argv:
        cut = argv.index("--")
        argv, worker_args = argv[:cut], argv[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m trio_worker.quickstart")
    parser.add_argument("--smoke", action="store_true", help="one request, then an ordered stop")
    parser.add_argument(
        "--demo", action="store_true", help="two workers; one is stopped while it recites"
    )
    parser.add_argument("--picture", type=Path, help="the demo's last screen, as SVG")
    parser.add_argument("--model", help="another model: a folder, or a name on a hub")
    parser.add_argument("--port", type=int, default=None, help="HTTP port of the frontend")
    parser.add_argument("--worker", default="trio_worker", help="module of the worker")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    options = parser.parse_args(argv)
    if options.demo and (options.smoke or options.model):
        parser.error("--demo recites, and proves it: no --model, no --smoke")
    if options.picture and not options.demo:
        parser.error("--picture is the demo's")
    return options, worker_args


async def run(options: argparse.Namespace, worker_args: Sequence[str]) -> int:
    """Trio. The launcher's exit status."""
    clock = Clock()
    stopped = Stopped()
    status = None
    play = _session
    if options.demo:
        # What draws on a terminal is not for those who only serve.
        from trio_worker.quickstart.demo import story

        play = story.session
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as stops:
        async with trio.open_nursery() as nursery:

            async def session() -> None:
                nonlocal status
                try:
                    status = await play(clock, options, worker_args, stopped)
                except (BuildFailed, PortInUse, ProcessDied, trio.TooSlowError) as error:
                    print(str(error) or "too slow: see the logs", file=sys.stderr)
                    status = 1
                nursery.cancel_scope.cancel()

            nursery.start_soon(session)
            async for number in stops:
                clock.say(signal.Signals(number).name)
                nursery.cancel_scope.cancel()
    if status is None:  # stopped on request: that is how serving ends, and not how a test ends
        status = INTERRUPTED if options.smoke or options.demo else 0
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
            await tell_start(cluster, worker, clock.say, cluster.lists_model)
            clock.say("the frontend lists the model")
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
            stopped.well = await orderly_stop(cluster, clock.say, options.smoke)


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


def main() -> None:
    """Neither flavour. The launcher's command line."""
    options, worker_args = parse(sys.argv[1:])
    raise SystemExit(trio.run(run, options, worker_args))


if __name__ == "__main__":
    main()
