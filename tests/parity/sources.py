# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the sources say: who imports whom, which environment variables and settings are read."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("trio_worker", "compat")
NOT_WORKERS = ("trio_worker.quickstart", "trio_worker.standin")
"""First steps and tests, beside the worker."""

PREFIXES = ("DYN_", "SGLANG_")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}[A-Z0-9]")
ENVIRON = ("environ", "env", "envs")


@dataclass
class Module:
    """One module's source."""

    name: str
    tree: ast.Module
    is_package: bool
    constants: dict[str, str] = field(default_factory=dict)

    def imports(self) -> Iterator[str]:
        """Dotted names, of modules or of what is in them; also those of functions."""
        for node in _without_type_checking(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = self.name.split(".")
                    package = package[: len(package) - node.level + self.is_package]
                    base = ".".join([*package, *([base] if base else [])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _without_type_checking(node)


class Sources:
    """Modules of Dynamo and of ours, read when they are first asked for."""

    def __init__(self) -> None:
        dynamo = importlib.util.find_spec("dynamo")
        assert dynamo is not None
        self._folders = {name: [ROOT / name] for name in OURS}
        self._folders["dynamo"] = [Path(at) for at in dynamo.submodule_search_locations or ()]
        self._known: dict[str, Module | None] = {}

    def get(self, name: str) -> Module | None:
        """None: no module, or none of these packages'."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def __getitem__(self, name: str) -> Module:
        module = self.get(name)
        assert module is not None, name
        return module

    def _read(self, name: str) -> Module | None:
        package, *rest = name.split(".")
        for folder in self._folders.get(package, ()):
            path = folder.joinpath(*rest)
            for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
                if file.exists():
                    module = Module(name, ast.parse(file.read_text()), file.stem == "__init__")
                    module.constants = dict(_constants(module.tree))
                    return module
        return None


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from ((one.id, value.value) for one in targets if isinstance(one, ast.Name))


def reach(sources: Sources, start: str) -> set[str]:
    """`start`, and whatever is imported from there."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        # To import a module is to import the packages that it is in.
        parts = waiting.pop().split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            if name not in seen and (module := sources.get(name)) is not None:
                seen.add(name)
                waiting += module.imports()
    return seen


def incumbents_modules(sources: Sources) -> set[str]:
    """What ``python -m dynamo.sglang`` imports."""
    return reach(sources, "dynamo.sglang.__main__")


def our_modules(sources: Sources) -> set[str]:
    """What ``python -m trio_worker`` imports, Dynamo's modules among it."""
    found = reach(sources, "trio_worker.__main__")
    return {name for name in found if not name.startswith(NOT_WORKERS)}


def variables(module: Module, everywhere: Mapping[str, str]) -> Iterator[str]:
    """Environment variables that a module reads or sets.

    Found where the environment is asked, and wherever a name with one of `PREFIXES` stands alone
    in quotes; `everywhere` are the constants of all modules.
    """

    def names(node: ast.AST | None) -> Iterator[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if VARIABLE.fullmatch(node.value):
                yield node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            constant = node.id if isinstance(node, ast.Name) else node.attr
            value = module.constants.get(constant) or everywhere.get(constant)
            if value is not None and VARIABLE.fullmatch(value):
                yield value

    for node in ast.walk(module.tree):
        if isinstance(node, ast.Subscript) and _is_environment(node.value):
            yield from names(node.slice)
        elif isinstance(node, ast.Compare) and any(map(_is_environment, node.comparators)):
            yield from names(node.left)
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if re.search(r"env", function, re.IGNORECASE) and node.args:
                yield from names(node.args[0])
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "envs":
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (one for one in names(node) if one.startswith(PREFIXES))


def _is_environment(node: ast.AST) -> bool:
    return ast.unparse(node).rpartition(".")[2] in ENVIRON


def all_variables(sources: Sources, names: Iterable[str]) -> dict[str, set[str]]:
    """Environment variable -> modules among `names` that read or set it."""
    asked = [sources[name] for name in sorted(names)]
    everywhere = {
        constant: value
        for module in asked
        for constant, value in module.constants.items()
        if VARIABLE.fullmatch(value)
    }
    found: dict[str, set[str]] = {}
    for module in asked:
        for variable in variables(module, everywhere):
            found.setdefault(variable, set()).add(module.name)
    return found


def settings(module: Module) -> set[str]:
    """Attributes of ``dynamo_args`` and ``server_args`` that a module asks for."""
    owners = ("args", "dynamo_args", "server_args", "dynamo_config", "parsed_args", "config")
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            owner, argument = node.args[0], node.args[1]
            if not isinstance(argument, ast.Constant):
                continue
            name = argument.value
        else:
            continue
        if ast.unparse(owner).rpartition(".")[2] in owners:
            found.add(name)
    return found


def all_settings(sources: Sources, names: Iterable[str]) -> dict[str, set[str]]:
    """Setting -> modules among `names` that read it."""
    found: dict[str, set[str]] = {}
    for name in sorted(names):
        for setting in settings(sources[name]):
            found.setdefault(setting, set()).add(name)
    return found
