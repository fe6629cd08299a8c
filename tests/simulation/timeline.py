# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A run as text: the case, then every event with its virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from .case import Case
from .record import Record


def text_of(record: Record) -> str:
    """Case and events of one run, a line each."""
    return "\n".join([*_case_lines(record.case), *_event_lines(record)])


def _case_lines(case: Case) -> Iterator[str]:
    knobs = _differing(case, skip=("requests", "acts"))
    yield f"seed {case.seed}: {knobs}"
    for index, request in enumerate(case.requests):
        yield f"  request {index}: {_differing(request, skip=('script',))}"
        yield f"    engine: {_differing(request.script, skip=('outputs',))}"
        steps = [f"{type(step).__name__}({_differing(step)})" for step in request.script.outputs]
        yield f"    outputs: {' '.join(steps)}"
    for act in case.acts:
        yield f"  act: {_differing(act, always=('request',))}"


def _differing(thing: Any, *, skip: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> str:
    """The fields that are not at their default."""
    parts = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        if field.name in skip or (value == field.default and field.name not in always):
            continue
        shown = f"({_differing(value)})" if is_dataclass(value) else repr(value)
        parts.append(f"{field.name}={shown}")
    return " ".join(parts)


def _event_lines(record: Record) -> Iterator[str]:
    names: dict[str, str] = {}
    for rid, index in record.owner_of.items():
        count = sum(name.startswith(f"r{index}") for name in names.values())
        names[rid] = f"r{index}" if count == 0 else f"r{index}.{count}"
    lines = [
        (entry.time, order, f"{entry.actor:9} {entry.event}", entry.rid, entry.detail)
        for order, entry in enumerate(record.journal.entries)
    ]
    for time, level, message in record.log:
        after = sum(entry.time <= time for entry in record.journal.entries)
        lines.append((time, after - 0.5, f"log       {level}", None, message))  # type: ignore[arg-type]
    for time, order, what, rid, detail in sorted(lines, key=lambda line: (line[0], line[1])):
        whose = names.get(rid, rid) if rid is not None else ""
        shown = "" if detail is None else str(detail)
        for long, short in names.items():
            shown = shown.replace(long, short)
        yield f"{time:10.4f} {order:5g}  {what:32} {whose:6} {shown}".rstrip()
