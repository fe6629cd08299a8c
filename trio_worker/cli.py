# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Our few flags, taken out of the command line; everything else is Dynamo's, unchanged."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trio_worker import __version__

SHUTDOWN_TIMEOUT_ENV = "DYN_WORKER_SHUTDOWN_TOTAL_TIMEOUT_SECS"
STAND_IN_ENV = "TRIO_WORKER_STAND_IN_SCHEDULER"
GC_ENV = "TRIO_WORKER_GC"
NO_TAP_ENV = "TRIO_WORKER_NO_TAP"

GC_POLICIES = ("freeze", "off")


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
    help_asked: bool = False


class Role(Enum):
    """The incumbent's roles (R1-R16), in its order of dispatch."""

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


class RoleNotBuilt(Exception):
    """A role that this worker does not serve yet."""

    def __init__(self, role: Role) -> None:
        super().__init__(
            f"trio_worker does not serve the role '{role.value}' yet: "
            "use python -m dynamo.sglang for it"
        )
        self.role = role


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, not {text}")
    return value


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trio-worker", add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS
    )
    ours = parser.add_argument_group("trio-worker options")
    ours.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        default=env.get(SHUTDOWN_TIMEOUT_ENV) or "30",
        metavar="SECONDS",
        help="from the first request to stop until the process is gone, all phases together "
        f"(env {SHUTDOWN_TIMEOUT_ENV}, default 30)",
    )
    ours.add_argument(
        "--stand-in-scheduler",
        default=env.get(STAND_IN_ENV) or None,
        metavar="SCRIPT",
        help="serve from a GPU-free scheduler for load and fault tests, for example "
        f"'step_ms=8' (env {STAND_IN_ENV})",
    )
    ours.add_argument(
        "--gc-policy",
        choices=GC_POLICIES,
        default=env.get(GC_ENV) or "freeze",
        help="freeze: freeze the heap after start-up and run no full collection while streams "
        f"are live; off: Python's default (env {GC_ENV})",
    )
    ours.add_argument(
        "--no-tap",
        action="store_true",
        default=bool(env.get(NO_TAP_ENV)),
        help=f"let all outputs take SGLang's own path, one wake-up each (env {NO_TAP_ENV}=1)",
    )
    return parser


def split_args(
    argv: Sequence[str], env: Mapping[str, str] = os.environ
) -> tuple[WorkerOptions, list[str]]:
    """Pure but for usage errors. Our options, and what is left for Dynamo's parser.

    Imports nothing slow. Raises ``SystemExit(2)`` with usage for a bad value, ``SystemExit(0)``
    for ``--version``.
    """
    if "--version" in argv:
        print(f"trio-worker {__version__}")
        raise SystemExit(0)
    parser = _parser(env)
    parsed, remaining = parser.parse_known_args(list(argv))
    options = WorkerOptions(
        shutdown_timeout=parsed.shutdown_timeout,
        stand_in_scheduler=parsed.stand_in_scheduler,
        gc_policy=parsed.gc_policy,
        tap=not parsed.no_tap,
        help_asked="--help" in remaining or "-h" in remaining,
    )
    return options, remaining


def our_help() -> str:
    """The text about our flags, to stand apart from Dynamo's."""
    return _parser(os.environ).format_help()


async def parse_config(remaining: Sequence[str]) -> Any:
    """asyncio. Dynamo's own parser; may download a model.

    Returns ``dynamo.sglang.args.Config``. Raises ``SystemExit(2)`` for bad arguments, and what
    Dynamo and SGLang raise for a model that they can't find.
    """
    from dynamo.sglang.args import parse_args

    if "--help" in remaining or "-h" in remaining:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            await parse_args(["--help"])
        print(shown.getvalue())
        print(our_help())
        raise SystemExit(0)
    try:
        return await parse_args(list(remaining))
    except SystemExit as leaving:
        # Combinations that contradict each other leave with 1; they are bad arguments.
        raise SystemExit(2 if leaving.code else 0) from None
    except ValueError as error:
        print(f"trio-worker: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def role_of(config: Any) -> Role:
    """Which role a parsed configuration selects; the first match wins, as in the incumbent."""
    from dynamo.common.constants import DisaggregationMode
    from dynamo.common.snapshot.constants import SNAPSHOT_CONTROL_DIR_ENV
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
        (lambda: bool(os.environ.get(SNAPSHOT_CONTROL_DIR_ENV)), Role.SNAPSHOT),
        (is_gateway_child, Role.GATEWAY_CHILD),
        (lambda: gateway_worker_count(server_args, args) > 1, Role.GATEWAY_LEADER),
        (lambda: server_args.node_rank >= 1, Role.NON_LEADER),
        (lambda: args.diffusion_worker, Role.LLM_DIFFUSION),
        (lambda: prefill, Role.PREFILL),
        (lambda: decode, Role.DISAGGREGATED_DECODE),
    )
    for selects, role in tests:
        if selects():
            return role
    return Role.DECODE


def run_parser(remaining: Sequence[str]) -> Any:
    """Neither flavour. `parse_config` in a loop of its own, before Trio runs."""
    return asyncio.run(parse_config(remaining))
