# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Conversion of SGLang chunks into Dynamo responses: pure, one object per request.

Each mode has a class; all share `Responses`:

| mode | class | the incumbent's counterpart (`decode_handler.py`, `prefill_handler.py`) |
|---|---|---|
| token ids | `TokenResponses` | `_process_token_stream` |
| text (`--use-sglang-tokenizer`) | `TextResponses` | `_process_text_stream` |
| native `/generate` | `NativeResponses` | `_process_native_generate_stream` |
| prefill | `PrefillResponses` | `_consume_results` |
| one answer | `AnswerResponses` | (the answer is the incumbent's own) |
| multimodal | `MultimodalResponses` | `StreamProcessor.process_sglang_stream` |
| multimodal prefill | `MultimodalPrefillResponses` | its `_consume_results` |
| multimodal encode | `ForwardedResponses` | `MultimodalEncodeWorkerHandler.generate` |

Nothing here awaits, logs, or knows of an engine, a loop or a context. The request task decides
*whether* a response is sent; this package decides *what* it is. Output equals the incumbent's
field by field, but for the deliberate differences that the modules name by rule number.
"""

from trio_worker.responses.answer import AnswerResponses, wrap_answer
from trio_worker.responses.finish import SHUTDOWN_MESSAGE
from trio_worker.responses.merge import coalesce, coalesced
from trio_worker.responses.multimodal import (
    ForwardedResponses,
    MultimodalPrefillResponses,
    MultimodalResponses,
    error_text,
    merge_forwarded,
)
from trio_worker.responses.native import NativeResponses, wrap_native
from trio_worker.responses.prefill import PrefillResponses, bootstrap_response
from trio_worker.responses.state import Responses, choice_index
from trio_worker.responses.text import TextResponses
from trio_worker.responses.tokens import TokenResponses

__all__ = [
    "SHUTDOWN_MESSAGE",
    "AnswerResponses",
    "ForwardedResponses",
    "MultimodalPrefillResponses",
    "MultimodalResponses",
    "NativeResponses",
    "PrefillResponses",
    "Responses",
    "TextResponses",
    "TokenResponses",
    "bootstrap_response",
    "choice_index",
    "coalesce",
    "coalesced",
    "error_text",
    "merge_forwarded",
    "wrap_answer",
    "wrap_native",
]
