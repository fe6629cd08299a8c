# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""docs/parity.md, from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.parity.reasons import REASONS
from tests.parity.roles import RoleCase
from tests.parity.table import ALL, Row

INTRO = """# Parity

Everything that `python -m dynamo.sglang` offers, and whether `python -m trio_worker` does. Written
by `make parity`, which fails if anything is missing; the values behind each sign are in
`build/parity.json`.

- **Roles.** Both workers are started in each role, from the command line on, with a runtime that
  writes down what it is asked for and an engine that has nothing but SGLang's interface.
- **Flags.** Every option of the incumbent's parser is put on our command line, and has to arrive
  at that same parser. All roles parse all flags.
- **Environment variables and settings.** Wherever the sources of what the incumbent imports read
  one, we import that module too, or read it ourselves. All roles load all modules.

Signs: **=** the same on both sides, name and value; **+** ours only; **≠** different;
**(\u2013)** the incumbent's only; these three are explained [below](#differences).
**\u2013** on neither side; **!** missing.
"""

NEITHER = "\u2013"

KINDS = {
    "endpoint": "Endpoints, with labels and graceful shutdown",
    "canary": "Canary requests",
    "registration": "Registration: type, input, worker type, needs",
    "engine route": "Engine routes",
    "client": "Clients of other endpoints",
    "waits for": "Instances waited for",
    "first-token source": "First-token notices",
    "KV events": "KV event publishers",
    "forward-pass metrics": "Forward-pass metrics",
    "publisher": "Other publishers",
    "health status": "Health status set",
    "runtime": "How the runtime is made",
    "engine": "How the engine is made",
    "engine call": "Calls of the engine before it serves",
    "warm-up": "Warm-up",
    "child process": "Child processes",
    "exec": "Becomes another process",
    "restore context": "For whoever is restored",
    "environment set": "Environment variables set",
    "metrics shown": "Registries that `/metrics` shows",
    "metric": "Metrics",
}


def sign(row: Row | None) -> str:
    """One cell."""
    if row is None:
        return NEITHER
    if row.verdict == "missing":
        return "!"
    if row.verdict == "same":
        return "="
    return "+" if row.incumbent is None else "≠" if row.ours else f"({NEITHER})"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"
    yield ""


def _by_role(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[str]:
    """Names down, roles across; SGLang's metrics in one line if they are all alike."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(row.name, {})[row.role] = sign(row)
    lines: dict[tuple[str, ...], list[str]] = {}
    for name, signs in sorted(cells.items()):
        family = "sglang" if name.startswith("sglang:") and not name.endswith("*") else name
        cell = tuple(signs.get(key, NEITHER) for key in keys)
        lines.setdefault((family, *cell), []).append(name)
    yield from _table(
        ["name", *keys],
        (
            [f"`{names[0]}`" if len(names) == 1 else f"{len(names)} of SGLang's", *cell]
            for (_family, *cell), names in lines.items()
        ),
    )


def _flags(rows: Sequence[Row]) -> Iterator[str]:
    groups: Mapping[str, list[Row]] = {"Dynamo": [], "SGLang": [], "ours": []}
    for row in rows:
        groups[row.incumbent or "ours"].append(row)
    lines = []
    for group, members in groups.items():
        names = sorted(row.name for row in members)
        told = ", ".join(f"`{name}`" for name in names) if group != "SGLang" else "all of them"
        signs = "".join(sorted({sign(row) for row in members}))
        lines.append([group, str(len(names)), signs, told])
    yield from _table(["from", "options", "sign", "which"], lines)


def _sources(rows: Sequence[Row]) -> Iterator[str]:
    lines = (
        [f"`{row.name}`", sign(row), row.incumbent or NEITHER, row.ours or "missing"]
        for row in rows
    )
    yield from _table(["name", "sign", "read by the incumbent in", "by ours in"], lines)


def written(rows: Sequence[Row], cases: Sequence[RoleCase]) -> str:
    """The page."""
    keys = list(dict.fromkeys(row.role for row in rows if row.role != ALL))
    titles = {case.key: case for case in cases}
    lines = [INTRO, "## Roles", ""]
    lines += _table(
        ["role", "what", "selected by"],
        ([key, titles[key].title, titles[key].selector or "no flag"] for key in keys),
    )
    for kind, heading in KINDS.items():
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            lines += [f"## {heading}", "", *_by_role(of_kind, keys)]
    lines += ["## Flags", "", *_flags([row for row in rows if row.kind == "flag"])]
    for kind, heading in (
        ("environment variable", "Environment variables"),
        ("setting", "Settings: what is read of the parsed flags"),
    ):
        lines += [f"## {heading}", "", *_sources([row for row in rows if row.kind == kind])]
    lines += ["## Differences", ""]
    used = {row.reason for row in rows if row.reason}
    lines += _table(
        ["what", "which", "why"],
        (
            [one.kind, f"`{one.name}`".replace("|", "\\|"), one.why]
            for one in REASONS
            if one.why in used
        ),
    )
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"
