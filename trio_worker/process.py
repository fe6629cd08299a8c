# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One worker's process, from the slow imports to the exit status.

Start-up order is the incumbent's (``dynamo/sglang/main.py``): arguments, config dump, hooks on
the engine, runtime, engine, registration. Until Trio runs, a signal ends the process by itself.
"""

from __future__ import annotations

import logging
import os
from typing import Any, NoReturn

# Before any Trio run: SGLang sets asyncio's loop policy while it is imported.
import sglang  # noqa: F401
import trio
from dynamo.common.config_dump import dump_config
from dynamo.runtime.logging import configure_dynamo_logging
from dynamo.sglang._compat import override_server_args
from dynamo.sglang.nixl_telemetry import install_scheduler_process_wrapper

from compat.engine import prepare_engine_class
from compat.signals import StopSignals
from trio_worker import constants
from trio_worker.cli import WorkerOptions, role_of, run_parser
from trio_worker.errors import explain, status_of
from trio_worker.responses import coalesce
from trio_worker.roles import Role
from trio_worker.roles.registry import implementation_of
from trio_worker.shutdown import leave
from trio_worker.standin import parse_script
from trio_worker.standin.install import install as install_stand_in
from trio_worker.worker import main

logger = logging.getLogger(__name__)

SGLANG_NOTIFY_OUTPUTS = 16
"""SGLang's default of ``--batch-notify-size``."""


def run_process(signals: StopSignals, options: WorkerOptions, argv: list[str]) -> NoReturn:
    """Neither flavour. Never returns: ends the process with its status."""
    configure_dynamo_logging()
    signals.doing("starting: reading arguments and the model's configuration")
    try:
        config = run_parser(argv)
        role = implementation_of(role_of(config))
        dump_config(config.dynamo_args.dump_config_to, config)
        _prepare(options, config, role)
    except Exception as error:
        # A stop kills the engine's children, which may look like a failure from here.
        signals.hold_exit()
        if str(error):
            logger.error("%s", explain(error), exc_info=logger.isEnabledFor(logging.DEBUG))
        leave(status_of(error))
    status = trio.run(main, signals, options, config, role)
    signals.hold_exit()
    leave(status)


def _prepare(options: WorkerOptions, config: Any, role: Role) -> None:
    """What must be in place before any engine is built. Raises what would keep it from starting."""
    role.prepare(config)
    install_scheduler_process_wrapper()
    if config.server_args.load_format == "gms" and os.environ.get("DYN_GMS_USE_V1") != "true":
        from gpu_memory_service.integrations.sglang import setup_gms

        override_server_args(
            config.server_args, "dynamo.gms", load_format=setup_gms(config.server_args)
        )
    raise_notify_size(config.server_args)
    if options.stand_in_scheduler is not None:
        install_stand_in(parse_script(options.stand_in_scheduler))
    prepare_engine_class(merge=coalesce, merge_at=constants.MERGE_OUTPUTS_AT, tap=options.tap)


def raise_notify_size(server_args: Any) -> None:
    """Leave SGLang's own default behind; what an operator chose stays."""
    if getattr(server_args, "batch_notify_size", None) == SGLANG_NOTIFY_OUTPUTS:
        override_server_args(server_args, "trio_worker", batch_notify_size=constants.NOTIFY_OUTPUTS)
