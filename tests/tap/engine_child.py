# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""A real SGLang engine with the tap on the stand-in scheduler, on our loop, in its own process.

    python -m tests.tap.engine_child SCRATCH RESULT

Runs every case once and writes what happened to RESULT as JSON; test_same.py asserts on it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import sglang  # noqa: F401 (it has to be imported before Trio runs)

# isort: split
import trio

from compat.engine import open_engine, prepare_engine_class
from compat.loop import open_loop
from compat.tap import TapMixin
from tests.standin.tiny_model import write_tiny_model
from tests.tap import cases
from tests.tap.runs import Wire
from trio_worker import constants
from trio_worker.responses import coalesce
from trio_worker.standin.install import install
from trio_worker.standin.script import parse_script
from trio_worker.standin.tokenizer import delay_tokenizer

SCRIPT = "step_ms=2"


async def observe(server: dict[str, Any], script: Any, scratch: Path) -> dict[str, Any]:
    """Trio. Start the engine and run the cases."""
    from sglang.srt.entrypoints.engine import Engine

    async with open_loop() as loop, open_engine(loop, lambda: Engine(**server)) as engine:
        manager = engine.tokenizer_manager
        delay_tokenizer(manager, script)
        Wire(manager)
        results = await cases.run_all(cases.Bench(loop, engine, scratch))
        results["unhandled"] = loop.unhandled_errors
        results["died"] = engine.death
        return results


def describe_gateway_worker() -> dict[str, Any]:
    """Neither flavour. What a gateway's child makes in place of the manager that is seen here."""
    from sglang.srt.managers.multi_tokenizer_mixin import TokenizerWorker
    from sglang.srt.server_args import ServerArgs

    worker_class = ServerArgs.get_tokenizer_worker_class(object())
    return {
        "is SGLang's": issubclass(worker_class, TokenizerWorker),
        "is tapped": issubclass(worker_class, TapMixin),
        "differs where the tap sits": sorted(
            name
            for name in vars(TokenizerWorker).keys() & vars(TapMixin).keys()
            if not name.startswith("__")
        ),
    }


def main(scratch: Path, result: Path) -> None:
    """Neither flavour."""
    script = dataclasses.replace(parse_script(SCRIPT), log=str(scratch / "events.jsonl"))
    install(script)
    prepare_engine_class(merge=coalesce, merge_at=constants.MERGE_OUTPUTS_AT, tap=True)
    server = {
        "model_path": str(write_tiny_model(scratch / "model")),
        "device": "cpu",
        "incremental_streaming_output": True,
        "log_level": "error",
        "enable_metrics": True,
        "log_requests": True,
        "log_requests_level": 2,
        "log_requests_format": "json",
        "log_requests_target": [str(scratch / "requests")],
        "export_metrics_to_file": True,
        "export_metrics_to_file_dir": str(scratch / "exported"),
    }
    results = trio.run(observe, server, script, scratch)
    results["gateway worker"] = describe_gateway_worker()
    results["logged"] = [
        json.loads(line[line.index("{") :])
        for file in (scratch / "requests").iterdir()
        for line in file.read_text().splitlines()
    ]
    results["exported"] = [
        json.loads(line)
        for file in (scratch / "exported").iterdir()
        for line in file.read_text().splitlines()
    ]
    result.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
