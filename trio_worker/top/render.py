# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What is watched, as something that rich can print; pure but for the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trio_worker.top.watch import View, Watched

STATES = {"planning": "dim", "streaming": "green", "draining": "magenta", "migrating": "blue"}

FRAME_LINES = 9
"""Lines of a worker that are not requests, at most."""


def screen(watched: Sequence[Watched], now: float, height: int) -> RenderableType:
    """All workers, in `height` lines if that is possible at all."""
    room = max(3, height // max(1, len(watched)) - FRAME_LINES)
    return Group(*(panel(one, now, room) for one in watched))


def panel(one: Watched, now: float, room: int) -> Panel:
    """One worker, with at most `room` requests."""
    view = one.view
    title = one.url
    if view is None:
        waiting = one.trouble or "asking"
        return Panel(
            Text(waiting, "red" if one.trouble else "dim"), title=Text(title), title_align="left"
        )
    worker = view["worker"]
    title += f"  {worker['model']}  {worker['role']}  pid {worker['pid']}"
    parts: list[RenderableType] = list(_lines(one, view, now))
    if view["requests"]:
        parts.append(_requests(view, room))
    style = "red" if one.trouble else "yellow" if view["shutdown"]["reason"] else "none"
    return Panel(Group(*parts), title=Text(title), title_align="left", border_style=style)


def _lines(one: Watched, view: View, now: float) -> Iterator[Text]:
    if one.trouble:
        gone = now - one.silent_since if one.silent_since is not None else 0.0
        yield Text(f"gone: {one.trouble}; last heard {seconds(gone)} ago, asking on", "bold red")
    stop = view["shutdown"]
    if stop["reason"]:
        active = ", ".join(f"{name} {age:.1f} s" for name, age in stop["active"].items())
        yield Text(
            f"stopping ({stop['reason']}): {active or 'between phases'}, "
            f"{seconds(max(0.0, stop['seconds_left']))} left",
            "bold yellow",
        )
    counts, aborts, feeders = view["counts"], view["aborts"], view["feeders"]
    rate = "" if one.tokens_per_s is None else f", {one.tokens_per_s:.0f} tokens/s"
    restarted = f", restarted {one.restarts} times" if one.restarts else ""
    yield Text(
        f"up {seconds(view['worker']['uptime_s'])}{restarted}: {counts['live']} requests{rate}; "
        f"{counts['admitted']} admitted, {counts['migrated']} migrated, {counts['refused']} refused"
    )
    yield Text(
        f"aborts: {aborts['sent']} sent, {aborts['confirmed']} confirmed, "
        f"{len(aborts['pending'])} pending; drains: {counts['drains_ended']} ended, "
        f"{counts['drains_timed_out']} timed out"
    )
    yield Text(
        f"feeders: {feeders['running']} running, {len(feeders['adrift'])} adrift; senders: "
        f"{view['senders']['stuck']} stuck; longest garbage pause "
        f"{view['garbage']['longest_pause_s'] * 1000:.0f} ms"
    )
    for abort in aborts["pending"][:3]:
        yield Text(
            f"  abort of {abort['rid']} waits for {abort['waits_for']}, {seconds(abort['age_s'])}",
            "magenta",
        )
    if one.said:
        yield Text(one.said, "cyan")


def _requests(view: View, room: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("rid", no_wrap=True, ratio=2, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for name in ("age", "accepted", "tokens", "backlog", "stuck", "deadline"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("context", no_wrap=True, ratio=2, overflow="ellipsis")
    requests: list[dict[str, Any]] = view["requests"]
    for one in requests[:room]:
        deadline = one["deadline_in_s"]
        table.add_row(
            Text(one["rid"] or "-"),
            Text(one["phase"], STATES.get(one["phase"], "")),
            seconds(one["age_s"]),
            str(one["accepted"]),
            str(one["tokens"]),
            str(one["backlog"]),
            Text(seconds(one["stuck_s"]), "red") if one["stuck_s"] else "",
            "" if deadline is None else seconds(deadline),
            Text(one["context"]),
        )
    more = len(requests) - room + view["requests_left_out"]
    if more > 0:
        table.add_row(f"… and {more} more")
    return table


def seconds(value: float) -> str:
    """A duration for a person."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
