# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Prefill and decode in workers of their own, behind a real frontend that routes between them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from compat.processes import descendants
from tests.e2e.backing import StandIn
from tests.e2e.served import POLL_S, in_flight, left_behind, living, ready, system_env
from trio_worker.quickstart.chat import Answer, chat
from trio_worker.quickstart.cluster import (
    Cluster,
    Process,
    free_port,
    free_system_port,
    open_cluster,
)
from trio_worker.standin.events import read_events

# Three workers start in it, at once.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

GRACE = {"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0.3"}

LENGTH = 600
"""Tokens of an answer: six seconds."""

MOMENT = 40
"""Tokens that the client has when its worker is told to go."""

EXIT_S = 20.0
"""Seconds to a worker's end; about three on a quiet machine."""

QUESTION = "pair"


@dataclass(frozen=True, slots=True)
class Half:
    """One worker of the pair."""

    process: Process
    port: int
    """Of its status server."""
    log: Path
    """Of its scheduler."""

    def arrived(self) -> list[str]:
        """Requests that its scheduler has seen."""
        return [event["rid"] for event in read_events(self.log, "arrive")]


async def start_half(cluster: Cluster, backing: StandIn, mode: str, name: str) -> Half:
    """Trio. Either half; no key-value cache is sent, since the stand-in has none."""
    port, log = free_system_port(), backing.log.with_name(f"{name}.jsonl")
    transfer = ("--disaggregation-transfer-backend", "nixl")
    process = await cluster.start_worker(
        *backing.args,
        *("--disaggregation-mode", mode, *transfer),
        *("--disaggregation-bootstrap-port", str(free_port())),
        env={**system_env(backing, port), **GRACE, "TRIO_WORKER_STAND_IN_LOG": os.fspath(log)},
        name=name,
    )
    return Half(process, port, log)


async def stop(half: Half) -> list[int]:
    """Trio. SIGTERM: it must leave with status 0. Those of its family that are left."""
    family = descendants(half.process.pid)
    half.process.signal(signal.SIGTERM)
    assert await half.process.wait(EXIT_S) == 0, half.process.tail()
    return living(family)


async def test_a_stream_outlives_its_decode_worker_and_the_prefill_leaves(tmp_path: Path) -> None:
    """R10, R11: the prefill worker is asked again for the rest."""
    backing = StandIn.make(tmp_path, "step_ms=10")
    async with open_cluster(backing.model, model_name=backing.name) as cluster:
        await cluster.start_frontend("--migration-limit", "3")
        prefill = await start_half(cluster, backing, "prefill", "prefill")
        decoders = [await start_half(cluster, backing, "decode", f"decode-{n}") for n in (0, 1)]
        for half in (prefill, *decoders):
            await ready(cluster, half.process)
        warmed_up = len(prefill.arrived())

        expected = backing.expected(QUESTION, LENGTH)
        answer = Answer()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await chat(
                    cluster.port,
                    backing.name,
                    QUESTION,
                    answer=answer,
                    max_tokens=LENGTH,
                    temperature=0,
                )

            nursery.start_soon(ask)
            with trio.fail_after(60):
                while len(answer.text) < MOMENT:
                    assert answer.errors == []
                    await trio.sleep(POLL_S)
            serving = [half for half in decoders if await in_flight(half.port)]
            assert len(serving) == 1
            assert len(prefill.arrived()) == warmed_up + 1
            left = await stop(serving[0])
            had = len(answer.text)
        assert had < LENGTH
        assert (answer.errors, answer.done) == ([], True)
        assert answer.text == expected
        assert left == []
        other = next(half for half in decoders if half is not serving[0])
        assert len(serving[0].arrived()) == len(other.arrived()) == 1
        assert len(prefill.arrived()) == warmed_up + 2

        assert await stop(prefill) == []
        assert await stop(other) == []
        assert await left_behind(cluster) == []
        assert cluster.registered() == []
        # The runtime logs how the moved request ended where it began.
        assert serving[0].process.output().count("Traceback") == 1
        for half in (prefill, other):
            assert "Traceback" not in half.process.output()
