# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A scene on a terminal, in plain lines, or as a picture."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trio_worker.quickstart.demo.scene import Scene, phase_of
from trio_worker.quickstart.progress import Say

REFRESH_S: Final = 0.1
COLOURS: Final = ("cyan", "yellow")
"""One for each worker."""
PLAIN_WIDTH: Final = 76
PICTURE_WIDTH: Final = 110
TITLE: Final = "trio-worker demo"


class Screen:
    """In plain lines: what is new, as soon as it is known. For pipes and logs."""

    def __init__(self, scene: Scene, say: Say) -> None:
        self.scene = scene
        self.say = say
        self._waiting = ""
        self._from = 0

    def worker_does(self, index: int, doing: str) -> None:
        """A worker has got further."""
        self.scene.workers[index].doing = doing
        self.say(f"{self.scene.workers[index].name}: {doing}")

    def add_text(self, worker: int, text: str) -> None:
        """More of the answer."""
        self.scene.add_text(worker, text)
        if worker != self._from:
            self.flush()
            self._from = worker
        self._waiting += text
        while True:
            line, rest = _cut(self._waiting)
            if not rest:
                return
            self._print(line)
            self._waiting = rest

    def flush(self) -> None:
        """Show what still waits for its line to be full."""
        if self._waiting:
            self._print(self._waiting)
            self._waiting = ""

    def add_plan(self, line: str) -> None:
        """A line that the stopping worker has logged."""
        assert self.scene.stopped is not None
        self.scene.plan.append(line)
        self.say(f"{self.scene.workers[self.scene.stopped].name}: {line}")

    def conclude(self) -> None:
        """Show the proofs."""
        self.flush()
        for proof in self.scene.proofs:
            self.say(f"{'yes' if proof.holds else 'NO '}  {proof.claim}")

    def _print(self, line: str) -> None:
        print(f"    {self.scene.workers[self._from].name} | {line.strip()}", flush=True)


def _cut(text: str) -> tuple[str, str]:
    """A full line and the rest; no rest while the line is not full."""
    head, newline, rest = text.partition("\n")
    if newline and len(head) <= PLAIN_WIDTH:
        return head, rest.lstrip("\n")
    if len(head) <= PLAIN_WIDTH:
        return text, ""
    end = text.rfind(" ", 0, PLAIN_WIDTH)
    return text[:end], text[end + 1 :]


class LiveScreen(Screen):
    """On a terminal: one picture that changes."""

    def worker_does(self, index: int, doing: str) -> None:
        """A worker has got further, or has not."""
        self.scene.workers[index].doing = doing.removeprefix("still ")

    def add_text(self, worker: int, text: str) -> None:
        """More of the answer."""
        self.scene.add_text(worker, text)

    def add_plan(self, line: str) -> None:
        """A line that the stopping worker has logged."""
        self.scene.plan.append(line)

    def conclude(self) -> None:
        """The picture has them."""


@asynccontextmanager
async def open_screen(scene: Scene, say: Say) -> AsyncIterator[Screen]:
    """Trio. A picture if stdout is a terminal, plain lines if it is not."""
    console = Console()
    if not console.is_terminal:
        yield Screen(scene, say)
        return
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop", transient=True)

    async def refresh() -> None:
        while True:
            live.update(draw(scene, console.height), refresh=True)
            await trio.sleep(REFRESH_S)

    with live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            yield LiveScreen(scene, say)
            nursery.cancel_scope.cancel()
    console.print(draw(scene))


def draw(scene: Scene, height: int | None = None) -> RenderableType:
    """The whole scene; pure. With a `height` in lines, only the end of the text."""
    text = Text()
    for worker, part in scene.parts:
        text.append(part, style=COLOURS[worker % len(COLOURS)])
    if scene.stopped_at is not None:
        text.stylize("reverse", scene.stopped_at - 1, scene.stopped_at)
    others = 9 + len(scene.proofs)
    shown: RenderableType = text if height is None else _End(text, max(5, height - others))
    body = Table.grid(expand=True, padding=(0, 1))
    body.add_column(ratio=3)
    body.add_column(ratio=2)
    body.add_row(
        Panel(
            shown,
            title="the answer, as its reader sees it",
            subtitle=None if scene.stopped is None else "reversed: SIGTERM",
            border_style="dim",
        ),
        Panel(_plan(scene), title=_plan_title(scene), border_style="dim"),
    )
    return Group(
        _workers(scene), body, *(_proof(proof.claim, proof.holds) for proof in scene.proofs)
    )


class _End:
    """The last lines of a text that is longer than the screen."""

    def __init__(self, text: Text, lines: int) -> None:
        self._text = text
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self._text.wrap(console, options.max_width)
        yield Text("\n").join(list(lines)[-self._lines :])


def _workers(scene: Scene) -> Table:
    table = Table(expand=True, box=None, header_style="dim")
    for name in ("worker", "pid", "requests", "what it does"):
        table.add_column(name, ratio=4 if name == "what it does" else 1)
    for index, worker in enumerate(scene.workers):
        style = COLOURS[index % len(COLOURS)]
        table.add_row(
            Text(worker.name, style=style),
            str(worker.pid),
            Text("serves" if worker.requests else "-", style=style),
            worker.doing,
        )
    return table


def _plan_title(scene: Scene) -> str:
    if scene.stopped is None:
        return "no stop yet"
    return f"the stop of {scene.workers[scene.stopped].name}"


def _plan(scene: Scene) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    last = ""
    for line in scene.plan:
        phase = phase_of(line)
        if phase is None:
            last = line
            if not line.startswith("draining"):
                # The seconds of each phase stand there already.
                table.add_row(Text(line.partition(": withdraw")[0], style="dim"))
        else:
            last = ""
            table.add_row(
                Text.assemble(
                    (f"{phase.number} {phase.name:<9}", "bold"),
                    f"{phase.seconds:6.2f} s  ",
                    phase.ended,
                )
            )
    if last.startswith("draining"):
        table.add_row(Text(last))
    return table


def _proof(claim: str, holds: bool) -> Text:
    return Text.assemble(("yes  ", "bold green") if holds else ("NO   ", "bold red"), claim)


def write_picture(scene: Scene, file: Path) -> None:
    """Neither flavour. The scene as an SVG that fetches nothing."""
    console = Console(
        record=True,
        width=PICTURE_WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="256",
    )
    console.print(draw(scene))
    svg = console.export_svg(title=TITLE, unique_id="demo")
    # The fonts that it would fetch from elsewhere; any monospaced one does.
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(svg)
