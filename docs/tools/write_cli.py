# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Write the tables of docs/cli.md anew from the parsers: ``python docs/tools/write_cli.py``.

Our flags come with their help. Of Dynamo's, only what a parser knows is told: names, variable,
default, choices; their help is theirs (``python -m trio_worker --help``). SGLang's several hundred
are not listed: its parser needs SGLang imported.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
TABLE = re.compile(r"(<!-- from the parser: (\w+) -->\n)(?:\|.*\n)*")
NONE = "\u2013"
MANY = 8
"""Values that are too many for a cell, and come in any order; ``--help`` has them."""
VARIABLE = re.compile(r"^env var: (\w+)", re.MULTILINE)

sys.path.insert(0, str(ROOT))


def ours() -> Iterator[str]:
    """Lines of the table of our flags."""
    from trio_worker.cli import _FLAGS

    yield "| flag | variable | what |"
    yield "|---|---|---|"
    for flag in _FLAGS:
        names = [flag.name, *([flag.negation] if flag.negation else [])]
        choices = flag.arguments.get("choices")
        metavar = flag.arguments.get("metavar") or (
            "\\|".join(choices) if choices else "" if flag.is_switch else "VALUE"
        )
        name = ", ".join(f"`{one}`" for one in names) + (f" {metavar}" if metavar else "")
        yield f"| {name} | `{flag.env}` | {flag.help} |"


def dynamos(actions: Iterable[argparse.Action]) -> Iterator[str]:
    """Lines of the table of one of Dynamo's groups."""
    yield "| flag | variable | default | values |"
    yield "|---|---|---|---|"
    for action in actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        variable = VARIABLE.search(action.help or "")
        yield " | ".join(
            (
                f"| {names}",
                f"`{variable[1]}`" if variable else NONE,
                _default(action.default),
                f"{_values(action)} |",
            )
        )


def _default(value: object) -> str:
    if value in (None, argparse.SUPPRESS, "", []):
        return NONE
    if isinstance(value, list):
        return f"`{','.join(map(str, value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(action: argparse.Action) -> str:
    if action.choices and len(action.choices) > MANY:
        return f"one of {len(action.choices)} names"
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0:
        return "switch"
    kind = getattr(action.type, "__name__", "str")
    return {"int": "whole number", "float": "number", "str": "text"}.get(kind, "text")


def tables() -> dict[str, list[str]]:
    """Each table's lines by its name on the page. The environment must hold none of Dynamo's
    variables: they are the parsers' defaults."""
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup
    from dynamo.sglang.backend_args import DynamoSGLangArgGroup

    found = {"ours": list(ours())}
    for name, group in (("runtime", DynamoRuntimeArgGroup), ("sglang", DynamoSGLangArgGroup)):
        parser = argparse.ArgumentParser(add_help=False)
        group().add_arguments(parser)
        found[name] = list(dynamos(parser._actions))
    return found


def written(page: str) -> str:
    """The page with its tables as the parsers have them."""
    found = tables()

    def table(match: re.Match[str]) -> str:
        return match[1] + "".join(f"{line}\n" for line in found.pop(match[2]))

    page = TABLE.sub(table, page)
    if found:
        raise ValueError(f"tables without a place on the page: {sorted(found)}")
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
