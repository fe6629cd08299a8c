# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A diffusion language model, whose answers come in blocks, behind a real frontend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from compat.processes import descendants
from tests.e2e.backing import StandIn
from tests.e2e.served import POLL_S, left_behind, living, ready, system_env
from trio_worker.quickstart.chat import Answer, chat
from trio_worker.quickstart.cluster import free_system_port, open_cluster
from trio_worker.standin.events import read_events

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ARCHITECTURE = "SDARForCausalLM"
BLOCK = 4
"""Tokens of a block, as SGLang has it for this architecture."""

LENGTH = 800


def as_diffusion_model(backing: StandIn) -> None:
    """SGLang asks the configuration whether the model is one; the stand-in needs no layers."""
    path = backing.model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [ARCHITECTURE]}))


async def test_answers_come_in_blocks_and_a_client_leaves(tmp_path: Path) -> None:
    """R8: rids of our own, so that a departure is an abort like any other (B12)."""
    backing = StandIn.make(tmp_path, f"step_ms=20,tokens_per_step={BLOCK}")
    as_diffusion_model(backing)
    async with open_cluster(backing.model, model_name=backing.name) as cluster:
        await cluster.start_frontend()
        worker = await cluster.start_worker(
            *backing.args,
            *("--dllm-algorithm", "LowConfidence", "--disable-cuda-graph"),
            env=system_env(backing, free_system_port()),
        )
        await ready(cluster, worker)
        assert "Diffusion worker initialized with algorithm: LowConfidence" in worker.output()

        pieces: list[str] = []
        whole = await chat(
            cluster.port, backing.name, "blocks", on_text=pieces.append, max_tokens=5 * BLOCK
        )
        assert whole.errors == []
        assert whole.text == backing.expected("blocks", 5 * BLOCK)
        assert {len(piece) for piece in pieces} == {BLOCK}

        cut = Answer()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await chat(cluster.port, backing.name, "cut", answer=cut, max_tokens=LENGTH)

            nursery.start_soon(ask)
            with trio.fail_after(60):
                while len(cut.text) < 3 * BLOCK:
                    await trio.sleep(POLL_S)
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            while not (aborts := read_events(backing.log, "abort")):
                await trio.sleep(POLL_S)
        assert [abort["repeated"] for abort in aborts] == [[]]
        assert not cut.errors
        assert backing.expected("cut", LENGTH).startswith(cut.text)
        assert len(cut.text) < LENGTH

        family = descendants(worker.pid)
        assert await cluster.stop(worker) == 0
        assert living(family) == []
        assert await left_behind(cluster) == []
