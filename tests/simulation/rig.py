# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The fake engine, built cheaply many times, and the conditions under which a seed repeats."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
import trio
from dynamo.sglang._compat import _get_async_generate_supported_kwarg_names
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

import compat.loop
import compat.senders
from compat.tap import tapped
from tests.fakes.engine import FakeEngine, FakeTokenizerManager
from tests.fakes.journal import Journal
from tests.fakes.script import EngineScript
from trio_worker import constants
from trio_worker.requests.request import Request as LiveRequest
from trio_worker.responses import coalesce

from .case import Case, Role

FIRST_PROMPT_TOKEN = 1000
"""The prompt of request i begins with token (or character) FIRST_PROMPT_TOKEN + i."""


class SimulatedManager(FakeTokenizerManager):
    """Shares what is costly to build."""

    _logging: dict[str, Any] | None = None

    def init_request_logging_and_dumping(self) -> None:
        # Building SGLang's request logger empties the caches of all loggers, thousands of them.
        if SimulatedManager._logging is None:
            before = set(vars(self))
            super().init_request_logging_and_dumping()
            SimulatedManager._logging = {k: v for k, v in vars(self).items() if k not in before}
        vars(self).update({k: copy.copy(v) for k, v in SimulatedManager._logging.items()})


def request_of(obj: Any) -> int:
    """Index of the request that SGLang is given as `obj`, by its prompt."""
    if obj.text is not None:
        return ord(obj.text[0]) - FIRST_PROMPT_TOKEN
    ids = obj.input_ids
    return int(ids[0][0] if isinstance(ids[0], list) else ids[0]) - FIRST_PROMPT_TOKEN


@cache
def _manager_class(merge_at: int) -> type[FakeTokenizerManager]:
    return tapped(SimulatedManager, merge=coalesce, merge_at=merge_at)


@cache
def _server_args(skip_tokenizer_init: bool, role: Role) -> ServerArgs:
    return ServerArgs(
        model_path="dummy",
        device="cpu",
        served_model_name="fake-model",
        incremental_streaming_output=True,
        dist_init_addr="127.0.0.1:29500",
        skip_tokenizer_init=skip_tokenizer_init,
        disaggregation_mode="prefill" if role == "prefill" else "null",
    )


class _Published:
    """SGLang's arguments are global to the process, and slow to publish."""

    now: ServerArgs | None = None


class SimulatedEngine(FakeEngine):
    """A `FakeEngine` on arguments that are there already."""

    def __init__(
        self,
        journal: Journal,
        case: Case,
        script_of: Callable[[int], EngineScript],
    ) -> None:
        self.server_args = _server_args(case.skip_tokenizer_init, case.role)
        manager_class = _manager_class(case.merge_at) if case.tapped_manager else SimulatedManager
        self.journal = journal
        manager: Any = manager_class(self.server_args, None, start_pd_bootstrap_service=False)
        self.tokenizer_manager = manager
        manager.attach(journal, lambda obj: script_of(request_of(obj)))


def context_id(index: int) -> str:
    """Dynamo's id of request i."""
    return f"request-{index}"


def index_of(context: str) -> int:
    """The request of a `context_id`."""
    return int(context.removeprefix("request-"))


def publish_again() -> None:
    """Whoever published other arguments meanwhile (another test) is overruled by the next run."""
    _Published.now = None


class HashedTask(asyncio.Task[Any]):
    """An asyncio task whose place in a set does not depend on its address.

    SGLang hands choices on in the order of a set of tasks (``_stream_batch_responses``).
    """

    chance: random.Random

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._hash = self.chance.getrandbits(32)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._hash


def make_task(loop: Any, coroutine: Any, **options: Any) -> HashedTask:
    """A task factory for the bridge's loop."""
    return HashedTask(coroutine, loop=loop, **options)


@contextmanager
def conditions(case: Case) -> Iterator[list[str]]:
    """Pin everything that would make two runs of one seed differ, and what the case asks for.

    Trio: the order in which ready tasks run comes from the seed, as pytest-trio and Hypothesis do
    it. The bridge's loop: batches end by count, never by the clock. Ids, and the order of sets of
    tasks and of requests: from the seed. Garbage collector: off, since finalizers would run at
    moments of their own. Gives the list of what Python reported as unraisable.
    """
    arguments = _server_args(case.skip_tokenizer_init, case.role)
    if _Published.now is not arguments:
        publish(arguments, role="tokenizer")
        _Published.now = arguments
    chance = random.Random(f"order {case.seed}")
    HashedTask.chance = random.Random(chance.random())
    places = [chance.getrandbits(32) for _ in case.requests]
    unraisable: list[str] = []
    core = trio._core._run
    replaced: list[tuple[Any, str, Any]] = [
        (core, "_r", random.Random(chance.random())),
        (core, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (uuid, "os", SimpleNamespace(urandom=chance.randbytes)),
        (compat.loop, "BATCH_CALLBACKS", case.batch_callbacks),
        (compat.loop, "BATCH_SECONDS", float("inf")),
        (compat.senders, "IN_PLACE_FRAMES", case.in_place_frames),
        (constants, "MERGE_OUTPUTS_AT", case.merge_at),
        (LiveRequest, "__hash__", lambda request: places[index_of(request.context_id)]),
        (
            sys,
            "unraisablehook",
            lambda hook: unraisable.append(
                f"{hook.err_msg}: {hook.exc_value!r} in {hook.object!r}"
            ),
        ),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        yield unraisable
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        # Keyed by a method of the engine, it would keep the whole worker.
        _get_async_generate_supported_kwarg_names.cache_clear()
        if collecting:
            gc.enable()
