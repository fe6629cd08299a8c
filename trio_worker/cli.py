# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our few flags, taken out of the command line; everything else is Dynamo's, unchanged.

Two steps, because one of them needs SGLang: `split_args` answers at once, `parse_config` is
``python -m dynamo.sglang``'s own parser.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn

from trio_worker import __version__
from trio_worker.errors import BadArguments, ModelMissing, StartupExit, model_missing
from trio_worker.standin import ScriptError, parse_script

PROGRAM: Final = "trio-worker"
GC_POLICIES: Final = ("freeze", "off")

_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_FALSE: Final = frozenset({"0", "false", "off", "no"})


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What our own flags say."""

    shutdown_timeout: float = 30.0
    """Seconds from the first request to stop until the process is gone."""
    stand_in_scheduler: str | None = None
    """Script of the GPU-free scheduler; None: SGLang's own."""
    gc_policy: str = "freeze"
    """``freeze``: no full collection while streams are live; ``off``: Python's default."""
    tap: bool = True
    """Outputs may leave SGLang through the tap."""
    recorder_events: int = 20_000
    """Events that the flight recorder keeps; 0: it is off."""
    recorder_dir: str | None = None
    """Where it is written to; None: a folder of ours below the system's temporary one."""
    help_asked: bool = False
    """Our part of the help has been shown; Dynamo's parser shows the rest."""


# ---- our flags ----


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return value


def _script(text: str) -> str:
    try:
        parse_script(text)
    except ScriptError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


@dataclass(frozen=True)
class _Flag:
    """One of our flags, with its twin in the environment."""

    name: str
    env: str
    help: str
    arguments: Mapping[str, Any]

    @property
    def negation(self) -> str | None:
        """The other spelling of a switch."""
        return f"--no-{self.name[2:]}" if self.is_switch else None

    @property
    def is_switch(self) -> bool:
        """Takes no value."""
        return "action" in self.arguments


_FLAGS: Final = (
    _Flag(
        "--shutdown-timeout",
        "DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS",
        "from the first request to stop until the process is gone, all phases together; default 30",
        {"type": _seconds, "metavar": "SECONDS"},
    ),
    _Flag(
        "--stand-in-scheduler",
        "TRIO_WORKER_STAND_IN_SCHEDULER",
        "serve from a GPU-free scheduler, for load and fault tests: 'step_ms=8', say",
        {"type": _script, "metavar": "SCRIPT"},
    ),
    _Flag(
        "--gc-policy",
        "TRIO_WORKER_GC",
        "freeze: freeze the heap after start-up and run no full collection while streams are "
        "live; off: leave Python's collector as it is; default freeze",
        {"choices": GC_POLICIES},
    ),
    _Flag(
        "--tap",
        # Named for the exception, which is what one sets.
        "TRIO_WORKER_NO_TAP",
        "take outputs from SGLang where they arrive (default), or --no-tap: by SGLang's own path, "
        "one wake-up each",
        {"action": argparse.BooleanOptionalAction},
    ),
    _Flag(
        "--recorder-events",
        "TRIO_WORKER_RECORDER_EVENTS",
        "events that the flight recorder keeps, about eight a request; 0: none; default 20000",
        {"type": _count, "metavar": "COUNT"},
    ),
    _Flag(
        "--recorder-dir",
        "TRIO_WORKER_RECORDER_DIR",
        "where the flight recorder is written to on demand and when the worker fails; default: "
        "trio-worker-flights in the system's temporary folder",
        {"metavar": "FOLDER"},
    ),
)


class _Parser(argparse.ArgumentParser):
    """Parses our flags only, each absent unless given; says where a bad value came from."""

    source = ""

    def __init__(self) -> None:
        super().__init__(
            prog=PROGRAM,
            add_help=False,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            usage="%(prog)s [trio-worker options] [options of python -m dynamo.sglang]",
        )
        ours = self.add_argument_group(f"{PROGRAM} options")
        for flag in _FLAGS:
            ours.add_argument(
                flag.name, **flag.arguments, help=f"{flag.help} (env {flag.env})".replace("%", "%%")
            )

    def error(self, message: str) -> NoReturn:
        super().error(f"{message} (from {self.source})" if self.source else message)


def split_args(
    argv: Sequence[str], env: Mapping[str, str] = os.environ
) -> tuple[WorkerOptions, list[str]]:
    """Neither flavour. Our options, and what is left for Dynamo's parser, in its order.

    Ours are taken wherever they stand before ``--``, as ``--flag value`` or ``--flag=value``, only
    when spelt out; the command line wins over the environment. Imports nothing slow, so that what
    can be told at once is told here. As argparse does: raises ``SystemExit``, with 2 after usage
    for a bad value, 1 for a model path that is not there, 0 after the answer to ``--version``; our
    part of the help is printed here, for Dynamo's takes 20 s to come.
    """
    ours, remaining = _take_out(argv)
    asked = remaining[: remaining.index("--")] if "--" in remaining else remaining
    parser = _Parser()
    if "--version" in asked:
        print(_versions())
        raise SystemExit(0)
    given = vars(parser.parse_args(ours))
    for flag in _FLAGS:
        destination = flag.name[2:].replace("-", "_")
        if destination not in given and (text := env.get(flag.env, "").strip()):
            parser.source = flag.env
            given |= vars(parser.parse_args(_as_argument(parser, flag, text)))
    help_asked = "--help" in asked or "-h" in asked
    if help_asked:
        print(parser.format_help(), flush=True)
        print("(loading SGLang for the options of dynamo.sglang)", file=sys.stderr, flush=True)
    elif (missing := _missing_model_path(asked)) is not None:
        parser.exit(missing.status, f"{PROGRAM}: error: {missing.line}\n")
    return WorkerOptions(**given, help_asked=help_asked), remaining


def _take_out(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    switches = {name for flag in _FLAGS if flag.is_switch for name in (flag.name, flag.negation)}
    valued = {flag.name for flag in _FLAGS if not flag.is_switch}
    ours: list[str] = []
    remaining: list[str] = []
    tokens = iter(argv)
    for token in tokens:
        name, has_value, _ = token.partition("=")
        if token == "--":
            remaining += [token, *tokens]
        elif name in switches or (name in valued and has_value):
            ours.append(token)
        elif name in valued:
            ours += [token, *(value for value in [next(tokens, None)] if value is not None)]
        else:
            remaining.append(token)
    return ours, remaining


def with_shutdown_timeout(argv: Sequence[str], seconds: float) -> list[str]:
    """A command line like ours, of a child that has to be gone in `seconds`; pure."""
    ours, remaining = _take_out(argv)
    # The last one wins.
    return [*ours, f"--shutdown-timeout={seconds:g}", *remaining]


def _as_argument(parser: _Parser, flag: _Flag, text: str) -> list[str]:
    """The flag that a variable stands for."""
    if not flag.is_switch:
        return [f"{flag.name}={text}"]
    if text.lower() not in _TRUE | _FALSE:
        parser.error(f"expected one of 1/0, true/false, on/off, yes/no, not {text!r}")
    # The only switch has its variable named for the negation.
    assert flag.negation is not None
    return [flag.negation if text.lower() in _TRUE else flag.name]


def _versions() -> str:
    parts = []
    for name, distribution in (("Dynamo", "ai-dynamo"), ("SGLang", "sglang")):
        with contextlib.suppress(PackageNotFoundError):
            parts.append(f"{name} {version(distribution)}")
    return f"{PROGRAM} {__version__} ({', '.join(parts)})"


def _missing_model_path(arguments: Sequence[str]) -> ModelMissing | None:
    """A path that can be nothing but a path; the parser would look for it on the network."""
    path = ""
    for token, follower in itertools.pairwise((*arguments, "")):
        name, has_value, value = token.partition("=")
        if name in ("--model-path", "--model"):
            path = value if has_value else follower
    if path.startswith(("/", "./", "../")) and not os.path.exists(path):
        return ModelMissing(f"model path {path!r} does not exist")
    return None


# ---- Dynamo's flags ----


async def parse_config(remaining: Sequence[str]) -> Any:
    """asyncio. Dynamo's own parser, unchanged; may download a model, for which it awaits.

    Returns ``dynamo.sglang.args.Config``. Raises `StartupExit`: status 2 for bad arguments, 1 for
    a model that is not there, 0 after the help; and whatever else Dynamo and SGLang raise. Never
    ``SystemExit``, which an asyncio loop would take for itself.
    """
    from dynamo.sglang.args import parse_args
    from dynamo.sglang.gateway import effective_gateway_workers, validate_gateway_mode

    try:
        with _program_name():
            config = await parse_args(list(remaining))
        count = effective_gateway_workers(config.server_args, config.dynamo_args)
        validate_gateway_mode(config.server_args, config.dynamo_args, count)
    except SystemExit as leaving:
        # argparse has said why; so has Dynamo, which leaves with 1 for flags that exclude others.
        if leaving.code:
            raise BadArguments from None
        raise StartupExit(0) from None
    except ValueError as error:
        raise BadArguments(str(error)) from error
    except Exception as error:
        if (missing := model_missing(error)) is not None:
            raise missing from error
        raise
    return config


@contextlib.contextmanager
def _program_name() -> Iterator[None]:
    """argparse takes its program name from here; under ``-m`` it would be ``__main__.py``."""
    before = sys.argv[0]
    sys.argv[0] = PROGRAM
    try:
        yield
    finally:
        sys.argv[0] = before


def run_parser(remaining: Sequence[str]) -> Any:
    """Neither flavour. `parse_config` in a loop of its own, before Trio runs.

    Where that ends start-up, says why in one line and leaves the process; else raises the same.
    """
    try:
        return asyncio.run(parse_config(remaining))
    except StartupExit as leaving:
        if leaving.line:
            print(f"{PROGRAM}: error: {leaving.line}", file=sys.stderr)
        from trio_worker.shutdown import leave

        leave(leaving.status)


# ---- roles ----


class Role(Enum):
    """The incumbent's roles (R1-R15; R16 has left before there are any arguments)."""

    IMAGE_DIFFUSION = "image diffusion"
    VIDEO_GENERATION = "video generation"
    RERANK = "rerank"
    EMBEDDING = "embedding"
    MULTIMODAL_ENCODE = "multimodal encode"
    MULTIMODAL = "multimodal"
    MULTIMODAL_PREFILL = "multimodal prefill"
    LLM_DIFFUSION = "LLM diffusion"
    SNAPSHOT = "snapshot"
    GATEWAY_CHILD = "gateway child"
    GATEWAY_LEADER = "gateway leader"
    NON_LEADER = "non-leader node"
    DECODE = "aggregated decode"
    DISAGGREGATED_DECODE = "disaggregated decode"
    PREFILL = "disaggregated prefill"


def role_of(config: Any) -> Role:
    """Which role a parsed configuration selects; the first match wins (``dynamo/sglang/main.py``).

    Needs SGLang imported. The environment decides for children of a gateway and for snapshots.
    """
    from dynamo.common.constants import DisaggregationMode
    from dynamo.common.snapshot.lifecycle import is_snapshot_enabled
    from dynamo.sglang.gateway import gateway_worker_count, is_gateway_child

    args, server_args = config.dynamo_args, config.server_args
    prefill = config.serving_mode == DisaggregationMode.PREFILL
    decode = config.serving_mode == DisaggregationMode.DECODE
    tests: tuple[tuple[Callable[[], bool], Role], ...] = (
        (lambda: args.image_diffusion_worker, Role.IMAGE_DIFFUSION),
        (lambda: args.video_generation_worker, Role.VIDEO_GENERATION),
        (lambda: args.rerank_worker, Role.RERANK),
        (lambda: args.embedding_worker, Role.EMBEDDING),
        (lambda: args.multimodal_encode_worker, Role.MULTIMODAL_ENCODE),
        (lambda: args.multimodal_worker and not prefill, Role.MULTIMODAL),
        (lambda: args.multimodal_worker, Role.MULTIMODAL_PREFILL),
        (is_snapshot_enabled, Role.SNAPSHOT),
        (is_gateway_child, Role.GATEWAY_CHILD),
        (lambda: gateway_worker_count(server_args, args) > 1, Role.GATEWAY_LEADER),
        (lambda: server_args.node_rank >= 1, Role.NON_LEADER),
        (lambda: args.diffusion_worker, Role.LLM_DIFFUSION),
        (lambda: prefill, Role.PREFILL),
        (lambda: decode, Role.DISAGGREGATED_DECODE),
    )
    return next((role for selects, role in tests if selects()), Role.DECODE)
