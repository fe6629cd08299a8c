# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.tree: bounded, by name, and where a task stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import trio
import trio_asyncio
from trio.testing import wait_all_tasks_blocked

from compat.loop import open_loop
from trio_worker import tree


async def leaf() -> None:
    await trio.sleep_forever()


async def branch(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


def find(node: tree.Node, name: str) -> list[tree.Node]:
    """Every node of that name below `node`."""
    found = [node] if node.get("task") == name else []
    for nursery in node.get("nurseries", ()):
        for child in nursery["tasks"]:
            found += find(child, name)
    return found


def size(node: tree.Node) -> int:
    nurseries = node.get("nurseries", ())
    return 1 + sum(size(child) for nursery in nurseries for child in nursery["tasks"])


LEAF = f"{__name__}.leaf"


async def test_tasks_alike_are_told_once() -> None:
    async with trio.open_nursery() as nursery:
        inner = await nursery.start(branch, name="a branch")
        for _ in range(700):
            inner.start_soon(leaf)
        seen = tree.tree()
        (told,) = find(seen, "a branch")
        assert told == {
            "task": "a branch",
            "nurseries": [{"tasks": [{"task": LEAF, "times": 700}], "cancelled": False}],
        }
        assert f"{LEAF}, 700 times" in "\n".join(tree.lines(seen))
        inner.cancel_scope.cancel()
        assert find(tree.tree(), "a branch")[0]["nurseries"][0]["cancelled"]
        nursery.cancel_scope.cancel()


async def test_a_large_tree_is_bounded_and_says_what_it_leaves_out() -> None:
    async with trio.open_nursery() as nursery:
        for number in range(tree.MAX_TASKS + 100):
            nursery.start_soon(leaf, name=f"leaf {number:04}")
        seen = tree.tree()
        assert size(seen) <= tree.MAX_TASKS + 20  # a line for each nursery that is cut
        assert any("more" in line for line in tree.lines(seen))
        nursery.cancel_scope.cancel()


async def test_stacks_say_where_tasks_stand() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaf)
        nursery.start_soon(leaf)
        await wait_all_tasks_blocked()
        seen = tree.tree(stacks=True)
        both = find(seen, LEAF)
        assert len(both) == 2
        assert both[0]["stack"][0].startswith(f"{__name__}.leaf:")
        assert both[0]["stack"][1].startswith("trio._timeouts.sleep_forever:")
        nursery.cancel_scope.cancel()


async def endless() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 1


async def reads() -> None:
    async for _ in endless():
        pass


async def test_asyncio_tasks_are_counted_and_stand_somewhere() -> None:
    async with open_loop() as loop:
        task = loop.create_task(reads())
        await trio_asyncio.aio_as_trio(asyncio.sleep)(0.01)
        assert tree.asyncio_tasks(loop)["reads"] == 1
        (told,) = [node for node in tree.asyncio_stacks(loop) if node["task"] == "reads"]
        places = [place.partition(":")[0] for place in told["stack"]]
        assert places == [f"{__name__}.reads", f"{__name__}.endless", "asyncio.locks.Event.wait"]
        task.cancel()


async def test_threads() -> None:
    (main,) = [node for node in tree.thread_stacks() if node["task"] == "MainThread"]
    assert main["stack"][-1].startswith("trio_worker.tree.thread_stacks")
    assert len(main["stack"]) <= tree.MAX_FRAMES
