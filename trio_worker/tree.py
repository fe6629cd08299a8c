# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The nursery tree as plain values, and where each task stands: names and lines, never values."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

import trio

Node = dict[str, Any]
"""``{"task": name}``, where there is more: ``"times"`` (so many alike), ``"stack"`` (outermost
first), ``"nurseries"`` (each ``{"tasks": [nodes], "cancelled": bool}``); or ``{"left_out": n}``."""

MAX_TASKS = 500
"""Tasks that are told of; the rest is counted."""

MAX_FRAMES = 30
"""Frames of a task that are told of."""


def tree(root: trio.lowlevel.Task | None = None, *, stacks: bool = False) -> Node:
    """Trio or asyncio. The tree below `root` (by default, of the whole run).

    Tasks of one name that have no nurseries are told once, with their number, unless `stacks` are
    asked for.
    """
    root = root or trio.lowlevel.current_root_task()
    return {} if root is None else _Walk(stacks).node(root)


class _Walk:
    def __init__(self, stacks: bool) -> None:
        self._stacks = stacks
        self._left = MAX_TASKS

    def node(self, task: trio.lowlevel.Task) -> Node:
        self._left -= 1
        node: Node = {"task": task.name}
        if self._stacks:
            node["stack"] = trio_stack(task)
        if task.child_nurseries:
            node["nurseries"] = [
                {
                    "tasks": self._children(nursery),
                    "cancelled": nursery.cancel_scope.cancel_called,
                }
                for nursery in task.child_nurseries
            ]
        return node

    def _children(self, nursery: trio.Nursery) -> list[Node]:
        children = sorted(nursery.child_tasks, key=lambda child: child.name)
        if self._stacks:
            alike: Counter[str] = Counter()
        else:
            alike = Counter(child.name for child in children if not child.child_nurseries)
        nodes: list[Node] = []
        left_out = 0
        for child in children:
            times = 1 if child.child_nurseries else alike.pop(child.name, 0)
            if not times and not self._stacks:
                continue  # told already
            if self._left <= 0:
                left_out += max(times, 1)
                continue
            node = self.node(child)
            if times > 1:
                node["times"] = times
            nodes.append(node)
        if left_out:
            nodes.append({"left_out": left_out})
        return nodes


def lines(node: Node, indent: str = "") -> Iterator[str]:
    """Neither flavour. The tree as text, one line a task."""
    if "left_out" in node:
        yield f"{indent}… and {node['left_out']} more"
        return
    times = f", {node['times']} times" if "times" in node else ""
    yield f"{indent}{node.get('task', 'nothing runs')}{times}"
    for nursery in node.get("nurseries", ()):
        for child in nursery["tasks"]:
            yield from lines(child, indent + "  ")


def asyncio_tasks(loop: asyncio.AbstractEventLoop) -> dict[str, int]:
    """Trio or asyncio. How many asyncio tasks run which coroutine."""
    names = Counter(_name_of(task) for task in asyncio.all_tasks(loop))
    return dict(names.most_common(MAX_TASKS))


def asyncio_stacks(loop: asyncio.AbstractEventLoop) -> list[Node]:
    """Trio or asyncio. The loop's tasks with their stacks."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: (_name_of(task), task.get_name()))
    nodes: list[Node] = [
        {"task": _name_of(task), "name": task.get_name(), "stack": coroutine_stack(task.get_coro())}
        for task in tasks[:MAX_TASKS]
    ]
    if len(tasks) > MAX_TASKS:
        nodes.append({"left_out": len(tasks) - MAX_TASKS})
    return nodes


def thread_stacks() -> list[Node]:
    """Any thread. Every thread of this process, innermost frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        {"task": names.get(ident, str(ident)), "stack": _frame_stack(frame)}
        for ident, frame in sys._current_frames().items()
    ]


def trio_stack(task: trio.lowlevel.Task) -> list[str]:
    """Trio or asyncio. Where a Trio task stands."""
    return [_place(frame, line) for frame, line in islice(task.iter_await_frames(), MAX_FRAMES)]


def coroutine_stack(awaited: Any) -> list[str]:
    """Trio or asyncio. Where a suspended coroutine stands, through whatever it awaits."""
    stack: list[str] = []
    while awaited is not None and len(stack) < MAX_FRAMES:
        for prefix in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{prefix}_frame", None)
            if frame is not None:
                stack.append(_place(frame, frame.f_lineno))
                awaited = getattr(
                    awaited, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await", None
                )
                break
        else:
            # The awaitables of an async generator keep it to themselves.
            awaited = next(
                (one for one in gc.get_referents(awaited) if hasattr(one, "ag_frame")), None
            )
    return stack


def _name_of(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", None) or type(coroutine).__name__


def _frame_stack(frame: FrameType | None) -> list[str]:
    stack: list[str] = []
    while frame is not None and len(stack) < MAX_FRAMES:
        stack.append(_place(frame, frame.f_lineno))
        frame = frame.f_back
    return stack[::-1]


def _place(frame: FrameType, line: int | None) -> str:
    """``module.function:line``."""
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{line}"
