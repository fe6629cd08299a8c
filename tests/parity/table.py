# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The rows of the parity table, from what was recorded and what the sources say."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.parity import sources
from tests.parity.reasons import reason_for

ALL = "all"
"""For what does not depend on the role: both workers load all modules, and parse all flags."""

Told = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Row:
    """One thing of one role, on both sides."""

    role: str
    kind: str
    name: str
    incumbent: str | None
    ours: str | None
    verdict: str
    """``same``, ``explained`` or ``missing``."""
    reason: str = ""

    def as_json(self) -> dict[str, str]:
        """Without an empty field."""
        return {name: value or "none" for name, value in asdict(self).items()}


def row(role: str, kind: str, name: str, incumbent: str | None, ours: str | None) -> Row:
    """Judge one thing."""
    if incumbent == ours:
        return Row(role, kind, name, incumbent, ours, "same")
    reason = reason_for(role, kind, name, incumbent, ours)
    verdict = "explained" if reason else "missing"
    return Row(role, kind, name, incumbent, ours, verdict, reason)


def recorded_rows(roles: Mapping[str, Mapping[str, Told]]) -> Iterator[Row]:
    """What each role's start has asked for."""
    engine_names = sorted(_engine_metrics())
    for role, workers in roles.items():
        incumbent, ours = (
            {**told, **_shown_by_rust(told), **_shown_by_engine(told, engine_names)}
            for told in (workers["incumbent"], workers["ours"])
        )
        for key in dict.fromkeys((*incumbent, *ours)):
            kind, name = key
            yield row(
                *(role, kind, name.removeprefix("parity.")), incumbent.get(key), ours.get(key)
            )


def _engine_metrics() -> set[str]:
    """Every name that SGLang may give a metric."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    quoted = re.compile(r"[\"'](sglang:[a-z0-9_]+)[\"']")
    files = (Path(spec.origin).parent / "srt").rglob("*.py")
    return {name for file in files for name in quoted.findall(file.read_text())}


def _shown_by_engine(told: Told, names: Iterable[str]) -> dict[tuple[str, str], str]:
    shown = ("metrics shown", "sglang:*") in told
    return {("metric", name): "SGLang's" for name in names} if shown else {}


def _shown_by_rust(told: Told) -> dict[tuple[str, str], str]:
    """What the runtime counts of itself, of endpoints that are served, and of KV publishers."""
    from dynamo import prometheus_names as names

    kinds = {kind for kind, _name in told}
    groups: list[type] = [names.distributed_runtime] if "runtime" in kinds else []
    groups += [names.work_handler] if "endpoint" in kinds else []
    groups += [names.kv_publisher] if "KV events" in kinds else []
    return {
        ("metric", f"{names.name_prefix.COMPONENT}_{value}"): "the runtime's"
        for group in groups
        for constant, value in vars(group).items()
        if isinstance(value, str) and not constant.startswith("_") and "LABEL" not in constant
    }


# ---- flags ----


class _Caught(Exception):
    """The parser, about to parse."""


def incumbents_parser() -> argparse.ArgumentParser:
    """The one that ``dynamo.sglang.args.parse_args`` makes."""
    from dynamo.sglang.args import parse_args

    original = argparse.ArgumentParser.parse_known_args

    def caught(self: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        raise _Caught(self)

    argparse.ArgumentParser.parse_known_args = caught  # type: ignore[assignment]
    try:
        asyncio.run(parse_args([]))
    except _Caught as found:
        parser: argparse.ArgumentParser = found.args[0]
        return parser
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
    raise AssertionError("nothing was parsed")


def flag_rows() -> Iterator[Row]:
    """Every option of the incumbent's parser: does it reach that parser from our command line?"""
    from trio_worker.cli import _FLAGS

    groups = {
        option: "SGLang" if "SGLang" in (group.title or "") else "Dynamo"
        for group in incumbents_parser()._action_groups
        for action in group._group_actions
        for option in action.option_strings
    }
    for option, group in groups.items():
        yield row(ALL, "flag", option, group, _reaches(option, group))
    for flag in _FLAGS:
        for name in filter(None, (flag.name, flag.negation)):
            yield row(ALL, "flag", name, groups.get(name), "ours")


def _reaches(option: str, group: str) -> str:
    from trio_worker.cli import split_args

    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            _options, left = split_args([option, "value"], env={})
    except SystemExit:
        return "answered"
    return group if left == [option, "value"] else "taken"


# ---- what the sources read ----


def source_rows() -> Iterator[Row]:
    """Environment variables and settings that the incumbent's modules read.

    Honoured by ours where we import the module that reads it. What a module reads that we replace,
    ours must read itself.
    """
    known = sources.Sources()
    theirs, ours = sources.incumbents_modules(known), sources.our_modules(known)
    for kind, read in (
        ("environment variable", sources.all_variables(known, theirs | ours)),
        ("setting", sources.all_settings(known, theirs | ours)),
    ):
        for name in sorted(read):
            readers = read[name] & theirs
            if not readers:
                continue
            replaced = readers - ours
            own = {module for module in read[name] if module.startswith(sources.OURS)}
            incumbent = ", ".join(_short(readers))
            if replaced and not own:
                yield row(ALL, kind, name, ", ".join(_short(replaced)), None)
            else:
                where = [*_short(readers & ours), *(sorted(own) if replaced else ())]
                yield Row(ALL, kind, name, incumbent, ", ".join(where), "same")


def _short(modules: Iterable[str]) -> Iterator[str]:
    return (module.removeprefix("dynamo.") for module in sorted(modules))


def all_rows(roles: Mapping[str, Mapping[str, Told]]) -> list[Row]:
    """Everything."""
    return [*recorded_rows(roles), *flag_rows(), *source_rows()]
