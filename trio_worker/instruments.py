# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What looks at a worker from its first moment on, long before there is a `Worker`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from compat.signals import StopSignals
from trio_worker import inside, metrics
from trio_worker.cli import WorkerOptions
from trio_worker.lag import LoopLag
from trio_worker.recorder import Recorder, events
from trio_worker.recorder.black_box import ROUTE as FLIGHT_ROUTE
from trio_worker.recorder.black_box import BlackBox
from trio_worker.recorder.files import default_folder

if TYPE_CHECKING:
    from trio_worker.worker import Worker

logger = logging.getLogger(__name__)


def model_of(config: Any) -> str:
    """What clients call the model, as far as the configuration says."""
    server_args = config.server_args
    name = getattr(server_args, "served_model_name", None) or getattr(server_args, "model_path", "")
    return str(name)


class Instruments:
    """One worker's: flight recorder, loop lag, the stage of its start; and who is shown them."""

    def __init__(self, signals: StopSignals, options: WorkerOptions, config: Any) -> None:
        """Trio."""
        self.started_at = trio.current_time()
        self.lag: LoopLag = LoopLag()
        self.recorder: Recorder = Recorder(options.recorder_events)
        self.black_box = BlackBox(
            self.recorder,
            f"trio-worker {model_of(config)}",
            Path(options.recorder_dir) if options.recorder_dir else default_folder(),
        )
        self._signals = signals
        self._worker: Worker | None = None
        signals.before_leaving = lambda: self.black_box.write("forced to leave")

    def stage(self, what: str) -> None:
        """Trio. What the worker does from here on."""
        self._signals.doing(what)
        self.recorder.note_worker(events.STAGE, what)

    def show(self, worker: Worker) -> None:
        """Trio. Let operators look inside: engine routes and metrics, once there is an engine.

        Before anything of the runtime runs that may wait for the GIL (see `LlmRole.serve`).
        """
        self._worker = worker
        dynamo_args = worker.config.dynamo_args
        endpoint = worker.runtime.endpoint(
            f"{dynamo_args.namespace}.{dynamo_args.component}.{dynamo_args.endpoint}"
        )
        metrics.show(worker, endpoint)

        async def look(body: Any) -> dict[str, Any]:
            wanted = isinstance(body, dict) and bool(body.get("stacks"))
            return inside.view(worker, stacks=wanted)

        runtime = worker.runtime.runtime
        runtime.register_engine_route(inside.ROUTE, look)
        runtime.register_engine_route(FLIGHT_ROUTE, self.black_box.answer)

    def dump(self) -> None:
        """Trio. SIGUSR1: all there is to see, in the log; the flight recorder into its file."""
        if self._worker is None:
            logger.info("%s", inside.early_text(self._signals.stage))
        else:
            logger.info("%s", inside.text(self._worker))
        self.black_box.write_aside("SIGUSR1")

    def end(self, status: int) -> None:
        """Trio. The worker is about to leave with `status`: one that failed tells what it saw."""
        if status:
            self.black_box.write(f"exit status {status}")
