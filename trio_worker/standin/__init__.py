# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""A GPU-free scheduler process that speaks SGLang's wire protocol.

SGLang's own TokenizerManager and DetokenizerManager run unchanged; only the scheduler process is
ours, started through SGLang's hook ``Engine.run_scheduler_process_func``.

============  =====================================================================
script        what it does, parsed from one string
tokens        which token stands at a position; pure
alphabet      which token ids of a tokenizer are the letters a to z
faults        which of the scripted faults a request gets
request       one request inside the scheduler
roster        requests that send a chunk on every step, as columns
wire          the columns of SGLang's output messages
generation    the scheduler itself: queue, prefill, steps, aborts; no clock, no socket
pace          when the next step is due
events        the event log, and how tests read it
control       answers to control messages
process       the process: sockets, loop, start and end
install       putting it in the place of SGLang's scheduler
tokenizer     slow registration and dispatch, in the worker process
============  =====================================================================

This module imports nothing heavy: a spawned scheduler imports it before anything else.
"""

from trio_worker.standin.script import (
    Fault,
    FaultKind,
    ScriptError,
    StandInScript,
    parse_faults,
    parse_script,
)
from trio_worker.standin.tokens import text_at, token_at

__all__ = [
    "Fault",
    "FaultKind",
    "ScriptError",
    "StandInScript",
    "parse_faults",
    "parse_script",
    "text_at",
    "token_at",
]
