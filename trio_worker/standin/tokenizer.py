# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Slow registration and slow dispatch: faults that act in the worker process.

Registration (``rid_to_state[rid]``) and dispatch (``_mark_state_dispatched``) happen in SGLang's
TokenizerManager, which lives in the worker (in a gateway child's TokenizerWorker likewise), so the
scheduler can't delay them. Dispatch is delayed where tokenization is: in ``_tokenize_one_request``
and ``_batch_tokenize_and_process``, after registration. Registration is delayed before
``generate_request`` begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from trio_worker.standin.faults import WORKER_SIDE, FaultChooser
from trio_worker.standin.script import Fault, FaultKind, ScriptError, StandInScript


def _sampling_params(obj: Any) -> dict[str, Any]:
    params = getattr(obj, "sampling_params", None)
    if isinstance(params, list):
        params = params[0] if params else None
    return params or {}


class _Delays:
    """Draws each request's faults once, at its registration; asyncio, in the worker's loop."""

    def __init__(self, script: StandInScript, manager: Any) -> None:
        self._chooser = FaultChooser(script.faults, script.seed, WORKER_SIDE)
        self._manager = manager

    def _choose(self, obj: Any) -> tuple[Fault, ...]:
        params = _sampling_params(obj)

        def prompt() -> str:
            if isinstance(obj.text, str):
                return obj.text
            tokenizer = self._manager.tokenizer
            ids = obj.input_ids
            return "" if tokenizer is None or ids is None else str(tokenizer.decode(ids))

        try:
            return self._chooser.choose(
                custom_params=params.get("custom_params"),
                max_new_tokens=params.get("max_new_tokens"),
                prompt=prompt,
            )
        except ScriptError:
            # The scheduler reads the same text and refuses the request with this error.
            return ()

    async def sleep(self, faults: tuple[Fault, ...], kind: FaultKind) -> None:
        for fault in faults:
            if fault.kind is kind:
                await asyncio.sleep(fault.ms / 1000)

    def faults_of(self, obj: Any) -> tuple[Fault, ...]:
        # Kept on the request object: copies of it (n > 1) share what was drawn.
        faults: tuple[Fault, ...] | None = getattr(obj, "_stand_in_faults", None)
        if faults is None:
            faults = obj._stand_in_faults = self._choose(obj)
        return faults


def delay_tokenizer(manager: Any, script: StandInScript) -> None:
    """Let a TokenizerManager act out the script's worker-side faults.

    Asyncio flavour: the delays are asyncio sleeps in the loop that runs the manager. Does nothing
    to the methods of a manager whose script has no such fault and, since a request may bring its
    own (custom parameter), is called for every stand-in engine: registration is only wrapped if
    the script itself can delay it.
    """
    delays = _Delays(script, manager)
    tokenize_one = manager._tokenize_one_request
    tokenize_batch = manager._batch_tokenize_and_process

    async def slow_tokenize_one(obj: Any) -> Any:
        await delays.sleep(delays.faults_of(obj), FaultKind.DELAY_DISPATCH)
        return await tokenize_one(obj)

    async def slow_tokenize_batch(batch_size: int, obj: Any) -> Any:
        await delays.sleep(delays.faults_of(obj), FaultKind.DELAY_DISPATCH)
        return await tokenize_batch(batch_size, obj)

    manager._tokenize_one_request = slow_tokenize_one
    manager._batch_tokenize_and_process = slow_tokenize_batch

    generate = manager.generate_request

    async def slow_generate(obj: Any, request: Any = None) -> AsyncIterator[Any]:
        await delays.sleep(delays.faults_of(obj), FaultKind.DELAY_REGISTER)
        # aclosing: closing this generator must reach SGLang's at once, which aborts in it.
        async with aclosing(generate(obj, request)) as outputs:
            async for output in outputs:
                yield output

    if any(fault.kind is FaultKind.DELAY_REGISTER for fault in script.faults):
        manager.generate_request = slow_generate
