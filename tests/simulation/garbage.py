# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What only the cycle collector would free, and whether it is ours."""

from __future__ import annotations

import gc
import types
from pathlib import Path
from typing import Any

import compat
import trio_worker

FOLDERS = tuple(str(Path(package.__file__).parent) + "/" for package in (compat, trio_worker))
PACKAGES = ("compat", "trio_worker")


def ours() -> list[str]:
    """Cycles of unreachable objects with one of ours in them; the collector has to be off so far.

    An object is ours by its class's module; a frame, traceback, coroutine, generator or function
    by its code's file. What hangs on a cycle of somebody else is not in it, and a cycle through
    an object of a fake is the fake's.
    """
    things = _unreachable()
    if not any(_is_ours(thing) for thing in things):
        return []
    return [
        " -> ".join(_described(thing) for thing in cycle)
        for cycle in _cycles(things)
        if any(_is_ours(thing) for thing in cycle)
        and not any(type(thing).__module__.startswith("tests.fakes") for thing in cycle)
    ]


def ours_of_any_kind() -> list[str]:
    """The same, and what merely hangs on somebody else's cycle."""
    return [_described(thing) for thing in _unreachable() if _is_ours(thing)]


def _unreachable() -> list[Any]:
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()


def forget() -> None:
    """Let go of what is garbage by now, and look only at what is made from here on."""
    gc.collect()
    gc.freeze()


def _is_ours(thing: Any) -> bool:
    code = _code_of(thing)
    if code is not None:
        return code.co_filename.startswith(FOLDERS)
    module = getattr(type(thing), "__module__", None)
    return isinstance(module, str) and module.split(".")[0] in PACKAGES


def _described(thing: Any) -> str:
    code = _code_of(thing)
    name = type(thing).__qualname__
    return name if code is None else f"{name} of {code.co_qualname}"


def _cycles(things: list[Any]) -> list[list[Any]]:
    """The strongly connected components of `things` (Tarjan's algorithm, without recursion)."""
    places = {id(thing): place for place, thing in enumerate(things)}
    follows = [
        [places[id(other)] for other in gc.get_referents(thing) if id(other) in places]
        for thing in things
    ]
    found: list[list[Any]] = []
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    stacked: set[int] = set()
    for start in range(len(things)):
        if start in order:
            continue
        work = [(start, iter(follows[start]))]
        while work:
            place, others = work[-1]
            if place not in order:
                order[place] = lowest[place] = len(order)
                stack.append(place)
                stacked.add(place)
            for other in others:
                if other not in order:
                    work.append((other, iter(follows[other])))
                    break
                if other in stacked:
                    lowest[place] = min(lowest[place], order[other])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[place])
                if lowest[place] == order[place]:
                    cut = stack.index(place)
                    component = stack[cut:]
                    del stack[cut:]
                    stacked.difference_update(component)
                    if len(component) > 1 or place in follows[place]:
                        found.append([things[member] for member in component])
    return found


def _code_of(thing: Any) -> types.CodeType | None:
    for name in ("f_code", "cr_code", "gi_code", "ag_code", "__code__"):
        code = getattr(thing, name, None)
        if isinstance(code, types.CodeType):
            return code
    if isinstance(thing, types.TracebackType):
        return thing.tb_frame.f_code
    return None
