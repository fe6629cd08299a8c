# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Putting the stand-in in the place of SGLang's scheduler. Synchronous.

    install(parse_script("step_ms=8"))   # before the engine is built; then build it as always

It takes the hook that ``dynamo.sglang.nixl_telemetry.install_scheduler_process_wrapper`` takes,
so call it after that or instead of it. Nothing of what Dynamo's wrapper does for a scheduler is
lost: NIXL does not exist here, the metrics address is shared in ``process.py``. Whoever builds an
engine needs a ``__main__`` guard: SGLang spawns.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from trio_worker.standin.script import StandInScript


def run_stand_in(
    script: StandInScript,
    server_args: Any,
    port_args: Any,
    gpu_id: int,
    tp_rank: int,
    pp_rank: int,
    dp_rank: int | None,
    pipe_writer: Any,
    *display_ranks: int | None,
    **display_rank: int | None,
) -> None:
    """SGLang's scheduler entry point after the script; display ranks only label a process.

    Module-level so that spawn can pickle it by name. The heavy import is in here, in the child.
    """
    from trio_worker.standin.process import run

    run(script, server_args, port_args, gpu_id, tp_rank, pp_rank, dp_rank, pipe_writer)


def install(script: StandInScript) -> None:
    """Make every engine built from now on start stand-in schedulers. Needs SGLang imported."""
    # From its own module: ``sglang.Engine`` is a lazy proxy, see dynamo.sglang.nixl_telemetry.
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.utils import torch_memory_saver_adapter as memory_saver

    Engine.run_scheduler_process_func = staticmethod(partial(run_stand_in, script))
    # Snapshot mode starts schedulers under a library that needs CUDA's. Private, so probed.
    saver = getattr(memory_saver, "_TorchMemorySaverAdapterReal", None)
    if saver is not None:
        saver.configure_subprocess = lambda _saver: nullcontext()
