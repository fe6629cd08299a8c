# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What happens: both workers start, one recites, it is stopped, the other goes on, all is checked.

The engine is SGLang's own. A character of the passage is a token, so that a token that is lost,
doubled or out of order is a character that is.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from trio_worker.quickstart.chat import HOST, Answer, chat, get, metric_sum
from trio_worker.quickstart.cluster import (
    CPU_ENGINE_ARGS,
    READY_LINE,
    Cluster,
    Process,
    free_system_port,
    open_cluster,
)
from trio_worker.quickstart.demo.scene import Proof, Scene, Seen, has_migrated, plan_lines
from trio_worker.quickstart.demo.screens import Screen, open_screen, write_picture
from trio_worker.quickstart.progress import Clock, Stopped, orderly_stop, tell_start
from trio_worker.quickstart.recitation import PASSAGE, obtain_model

QUESTION: Final = "Please recite the passage."
WORKERS: Final = 2
MIGRATION_LIMIT: Final = 3
GRACE_S: Final = 1
"""What a stopping worker gives its requests: less than the rest of the recitation takes."""
STOP_AT: Final = 0.2
"""Share of the passage after which the worker is stopped, in the next mid-sentence."""
ANSWER_S: Final = 180.0
POLL_S: Final = 0.05
METRICS_S: Final = 0.2


async def session(
    clock: Clock, options: argparse.Namespace, worker_args: Sequence[str], stopped: Stopped
) -> int:
    """Trio. The demo from nothing to its proofs; 0 only if all of them hold."""
    model = await obtain_model(clock.say)
    scene = Scene()
    async with (
        open_cluster(
            model, model_name="recitation", port=options.port, keep=options.logs
        ) as cluster,
        open_screen(scene, clock.say) as screen,
    ):
        try:
            demo = await _start(clock, cluster, screen, options.worker, worker_args)
            began = trio.current_time()
            await demo.play()
            scene.proofs = await demo.proofs()
            clock.say(f"played in {trio.current_time() - began:.0f} s")
        finally:
            stopped.well = await orderly_stop(cluster, clock.say, strict=True)
        for index, worker in enumerate(cluster.workers):
            screen.worker_does(index, f"gone, exit status {worker.returncode}")
        claim = "every process has ended with status 0, none is left"
        scene.proofs.append(Proof(claim, stopped.well))
        screen.conclude()
    if options.picture is not None:
        write_picture(scene, options.picture)
        clock.say(f"picture: {options.picture}")
    return 0 if scene.proven else 1


async def _start(
    clock: Clock, cluster: Cluster, screen: Screen, module: str, worker_args: Sequence[str]
) -> Demo:
    """Trio. A frontend that migrates, and both workers, all at the same time."""
    clock.say("starting a frontend and two workers, each with an SGLang engine on the CPU")
    await cluster.start_frontend("--migration-limit", str(MIGRATION_LIMIT))
    ports = []
    for _ in range(WORKERS):
        ports.append(free_system_port())
        worker = await cluster.start_worker(
            *CPU_ENGINE_ARGS,
            *worker_args,
            module=module,
            env={
                "DYN_SYSTEM_PORT": str(ports[-1]),
                "DYN_SYSTEM_HOST": HOST,
                "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": str(GRACE_S),
            },
        )
        screen.scene.workers.append(Seen(worker.name, worker.pid))
    async with trio.open_nursery() as nursery:
        for index in range(WORKERS):
            nursery.start_soon(_follow_start, cluster, index, screen)
    await cluster.wait_model()
    return Demo(clock, cluster, screen, ports)


async def _follow_start(cluster: Cluster, index: int, screen: Screen) -> None:
    worker = cluster.workers[index]

    def say(text: str) -> None:
        screen.worker_does(index, text.removeprefix(f"{worker.name}: "))

    async def is_ready() -> bool:
        return READY_LINE in worker.output()

    await tell_start(cluster, worker, say, is_ready)
    screen.worker_does(index, "ready")


@dataclass
class Demo:
    """One recitation, from the question to the end of the worker that began it."""

    clock: Clock
    cluster: Cluster
    screen: Screen
    system_ports: list[int]
    answer: Answer = field(default_factory=Answer)
    first: int | None = None
    """Index of the worker that began the answer; None: not known yet."""
    _arrived: list[tuple[str, bool]] = field(default_factory=list)
    """Text that no screen shows yet, and whether the first worker had handed it on by then."""
    _handed_on: bool = False

    async def play(self) -> None:
        """Trio. Returns when the answer is complete and the worker that was stopped has ended."""
        self.clock.say(f"asking: {QUESTION}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_requests)
            nursery.start_soon(self._show_text)
            async with trio.open_nursery() as inner:
                inner.start_soon(self._read)
                inner.start_soon(self._stop_in_mid_sentence)
            nursery.cancel_scope.cancel()
        self._show_arrived()
        self.screen.flush()
        for worker in self.screen.scene.workers:
            worker.requests = 0

    async def _read(self) -> None:
        """Trio. The reader, who knows nothing of workers."""
        with trio.move_on_after(ANSWER_S):
            await chat(
                self.cluster.port,
                self.cluster.model_name,
                QUESTION,
                answer=self.answer,
                on_text=lambda piece: self._arrived.append((piece, self._has_handed_on())),
                max_tokens=len(PASSAGE) + 100,
                temperature=0,
            )

    def _has_handed_on(self) -> bool:
        """Told by the log of the worker itself, which writes before the next one begins."""
        if not self._handed_on and self.screen.scene.stopped is not None:
            self._handed_on = has_migrated(self.victim.output())
        return self._handed_on

    @property
    def victim(self) -> Process:
        """The worker that began the answer."""
        assert self.first is not None
        return self.cluster.workers[self.first]

    async def _stop_in_mid_sentence(self) -> None:
        """Trio. SIGTERM to whoever serves, and follow its log to its end."""
        while not self._in_mid_sentence():
            if self.answer.done or self.answer.errors:
                return
            await trio.sleep(POLL_S)
        assert self.first is not None
        scene, victim = self.screen.scene, self.victim
        scene.stopped, scene.stopped_at = self.first, len(self.answer.text)
        self.clock.say(f"SIGTERM to {victim.name}, which serves; grace {GRACE_S} s")
        self.screen.worker_does(self.first, "told to stop (SIGTERM)")
        victim.signal(signal.SIGTERM)
        while True:
            ended = victim.popen.poll() is not None
            for line in plan_lines(victim.output())[len(scene.plan) :]:
                self.screen.add_plan(line)
            if ended:
                break
            await trio.sleep(POLL_S)

    def _in_mid_sentence(self) -> bool:
        text = self.answer.text
        return self.first is not None and len(text) >= STOP_AT * len(PASSAGE) and text[-1].isalpha()

    async def _watch_requests(self) -> None:
        """Trio. Which worker serves, from each worker's own metrics."""
        workers = self.screen.scene.workers
        while True:
            for index, port in enumerate(self.system_ports):
                _, body = await get(port, "/metrics")
                workers[index].requests = int(
                    metric_sum(
                        body.decode(errors="replace"),
                        "dynamo_component_inflight_requests",
                        dynamo_endpoint="generate",
                    )
                )
                if self.first is None and workers[index].requests:
                    self.first = index
                    self.screen.worker_does(index, "serves the request")
            await trio.sleep(METRICS_S)

    async def _show_text(self) -> None:
        while True:
            self._show_arrived()
            await trio.sleep(POLL_S)

    def _show_arrived(self) -> None:
        if self.first is None:
            return
        for piece, handed_on in self._arrived:
            self.screen.add_text((self.first + handed_on) % WORKERS, piece)
        self._arrived.clear()

    async def proofs(self) -> list[Proof]:
        """Trio. What has to be true before anything else is stopped."""
        _, body = await get(self.cluster.port, "/metrics")
        migrations = int(metric_sum(body.decode(), "dynamo_frontend_model_migration_total"))
        answer = self.answer
        whole = answer.done and not answer.errors and answer.text == PASSAGE
        began = 0 if self.first is None else len(self.screen.scene.parts[0][1])
        return [
            Proof(
                f"the answer is the passage, letter for letter: {len(answer.text):,} of "
                f"{len(PASSAGE):,} characters{_errors(answer)}",
                whole,
            ),
            Proof(
                f"two workers served it, {began:,} and {len(answer.text) - began:,} characters; "
                f"the frontend counts {migrations} migration",
                migrations == 1 and len(self.screen.scene.parts) == WORKERS,
            ),
            Proof(
                "the worker that was stopped left by its own plan, status 0",
                self.first is not None and self.victim.returncode == 0,
            ),
        ]


def _errors(answer: Answer) -> str:
    return "".join(f"; {error}" for error in answer.errors)
