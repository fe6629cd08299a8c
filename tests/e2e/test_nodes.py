# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""More than one process of ours for one engine, and one that was frozen; behind a real frontend."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from compat.processes import descendants
from tests.e2e.backing import StandIn
from tests.e2e.served import (
    POLL_S,
    READY_S,
    free_system_port,
    in_flight,
    left_behind,
    living,
    metric_sum,
    system_env,
)
from trio_worker.quickstart.chat import Answer, chat, get, post
from trio_worker.quickstart.cluster import (
    READY_LINE,
    Cluster,
    Process,
    free_port,
    open_cluster,
)
from trio_worker.standin.events import read_events

# SGLang is imported in three steps, each by several processes.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

QUESTIONS = 16

LENGTH = 400
"""Tokens of an answer that is to be cut: four seconds, less than the grace of a sibling."""

EXIT_S = 30.0
"""Seconds to a gateway's end after the death of a child; the grace of 5 s is part of them."""


async def until(condition: Callable[[], bool], *processes: Process) -> None:
    """Trio. Raises `ProcessDied`, `trio.TooSlowError`."""
    with trio.fail_after(READY_S):
        while not condition():
            for process in processes:
                process.raise_if_dead()
            await trio.sleep(POLL_S)


def instances(cluster: Cluster) -> set[str]:
    """Of the generate endpoint, as discovery shows them."""
    return {
        path.name
        for path in cluster.registered()
        if "/instances/" in str(path) and "generate" in str(path)
    }


async def ask_all(cluster: Cluster, backing: StandIn, count: int) -> None:
    """Trio. Questions at once; each answer is right."""

    async def ask(number: int) -> None:
        question = f"number {number}"
        answer: Answer = await chat(
            cluster.port, backing.name, question, max_tokens=20, temperature=0
        )
        assert answer.errors == []
        assert answer.text == backing.expected(question, 20)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)


async def control(port: int, route: str) -> None:
    answer = await post(port, f"/engine/{route}", {})
    assert (answer.status, answer.body) == (200, {"status": "ok"})


async def test_a_gateway_on_two_nodes_leaves_on_one_signal(tmp_path: Path) -> None:
    """R12, R13, R14: two instances of one engine, schedulers on two "nodes", one signal."""
    backing = StandIn.make(tmp_path, "step_ms=10")
    port = free_system_port()
    args = (
        *backing.args,
        *("--tp", "2", "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}"),
        *("--gateway-workers", "2"),
    )
    async with open_cluster(backing.model, model_name=backing.name) as cluster:
        await cluster.start_frontend()
        env = system_env(backing, port)
        leader = await cluster.start_worker(*args, "--node-rank", "0", env=env)
        node = await cluster.start_worker(*args, "--node-rank", "1", env=backing.env)
        await until(lambda: leader.output().count(READY_LINE) == 2, leader, node)
        await until(lambda: len(instances(cluster)) == 2, leader, node)
        await cluster.wait_model()
        assert "Non-leader node detected (node_rank=1)" in node.output()

        await ask_all(cluster, backing, QUESTIONS)
        # The configured port is child 0's.
        status, body = await get(port, "/metrics")
        assert status == 200
        served = metric_sum(
            body.decode(), "dynamo_component_requests_total", dynamo_endpoint="generate"
        )
        assert 0 < served < QUESTIONS

        # What one child is asked to pause, all follow.
        await control(port, "pause_generation")
        await until(lambda: instances(cluster) == set(), leader, node)
        await control(port, "continue_generation")
        await until(lambda: len(instances(cluster)) == 2, leader, node)
        await ask_all(cluster, backing, 2)

        family = [*descendants(leader.pid), *descendants(node.pid)]
        os.killpg(leader.pid, signal.SIGTERM)
        assert await leader.wait() == 0
        # Nobody has told it: its scheduler was, by rank 0.
        assert await node.wait() == 0
        assert living(family) == []
        assert await left_behind(cluster) == []
        assert cluster.registered() == []
        assert [name for name in os.listdir("/dev/shm") if str(leader.pid) in name] == []
        assert "Traceback" not in leader.output() + node.output()


def child_pid(leader: Process, index: int) -> int:
    """Of the leader's child with this index."""
    mark = f"DYN_SGLANG_GATEWAY_CHILD_INDEX={index}".encode()
    for pid in descendants(leader.pid):
        if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no child {index}")


async def test_a_gateway_leaves_when_a_child_is_killed(tmp_path: Path) -> None:
    """R13, R14: status 1, nothing left; no request hangs, the sibling's come to their end."""
    backing = StandIn.make(tmp_path, "step_ms=10")
    port = free_system_port()
    expected = backing.expected("cut", LENGTH)
    async with open_cluster(backing.model, model_name=backing.name) as cluster:
        await cluster.start_frontend("--migration-limit", "3")
        leader = await cluster.start_worker(
            *backing.args, "--gateway-workers", "2", env=system_env(backing, port)
        )
        await until(lambda: leader.output().count(READY_LINE) == 2, leader)
        await until(lambda: len(instances(cluster)) == 2, leader)
        await cluster.wait_model()

        answers = [Answer() for _ in range(4)]
        async with trio.open_nursery() as nursery:

            async def ask(answer: Answer) -> None:
                await chat(
                    cluster.port,
                    backing.name,
                    "cut",
                    answer=answer,
                    max_tokens=LENGTH,
                    temperature=0,
                )

            for answer in answers:
                nursery.start_soon(ask, answer)
            await until(lambda: all(len(answer.text) > 20 for answer in answers), leader)
            # The configured port is child 0's.
            on_victim = await in_flight(port)
            assert 0 < on_victim < len(answers)
            family = descendants(leader.pid)
            victim = child_pid(leader, 0)
            os.kill(victim, signal.SIGKILL)
            assert await leader.wait(EXIT_S) == 1
            with trio.move_on_after(EXIT_S) as patience:
                while not all(answer.done or answer.errors for answer in answers):
                    await trio.sleep(POLL_S)
            assert not patience.cancelled_caught, answers
        for answer in answers:
            assert expected.startswith(answer.text)
            assert answer.errors or answer.text == expected
        whole = sum(answer.text == expected and not answer.errors for answer in answers)
        assert whole >= len(answers) - on_victim
        assert f"gateway child pid={victim} exited rc=-9" in leader.output()
        assert living(family) == []
        assert await left_behind(cluster) == []
        assert [name for name in os.listdir("/dev/shm") if str(leader.pid) in name] == []


MEMORY_GOES = ["ReleaseMemoryOccupationReqInput"]
MEMORY_COMES = ["ResumeMemoryOccupationReqInput", "ContinueGenerationReqInput"]


def told(backing: StandIn) -> list[str]:
    """Control messages that the scheduler got."""
    names = [event["name"] for event in read_events(backing.log, "control")]
    return [name for name in names if name in (*MEMORY_GOES, *MEMORY_COMES)]


async def test_a_worker_is_frozen_and_thawed(tmp_path: Path) -> None:
    """R15, as far as it goes without CRIU: one process is both the original and the restored."""
    backing = StandIn.make(tmp_path, "step_ms=10")
    folder = tmp_path / "control"
    folder.mkdir()
    env = {
        **system_env(backing, free_system_port()),
        "DYN_SNAPSHOT_CONTROL_DIR": os.fspath(folder),
    }
    async with open_cluster(backing.model, model_name=backing.name) as cluster:
        await cluster.start_frontend()
        worker = await cluster.start_worker(*backing.args, env=env)
        await until(lambda: "ready-for-snapshot" in os.listdir(folder), worker)
        # No connection is part of the image, and no memory that can be had again.
        assert cluster.registered() == []
        assert told(backing) == MEMORY_GOES
        context = {"env": {"DYN_NAMESPACE": "thawed"}}
        (folder / "restore-context.json").write_text(json.dumps(context))
        (folder / "restore-complete").touch()
        await worker.wait_line(READY_LINE, READY_S)
        await cluster.wait_model()
        assert told(backing) == [*MEMORY_GOES, *MEMORY_COMES]
        await ask_all(cluster, backing, 4)
        assert {name.partition("%2F")[0] for name in instances(cluster)} == {"thawed"}
        family = descendants(worker.pid)
        assert await cluster.stop(worker) == 0
        assert living(family) == []
        assert await left_behind(cluster) == []
        assert "Traceback" not in worker.output()
