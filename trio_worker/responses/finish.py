# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What a chunk's finish reason means: an error, a migration, or an end that is sent.

A finish reason is SGLang's `BaseFinishReason.to_json()`: `{"type": "stop" | "length" | "abort",
"matched": ..., "message": ..., "status_code": ..., "err_type": ...}`, or None while running.
"""

from typing import Any

from dynamo.llm.exceptions import EngineShutdown
from dynamo.sglang.request_handlers.llm.decode_handler import _raise_if_sglang_error

SHUTDOWN_MESSAGE = "Engine was shut down during token generation"
"""The incumbent's text; operators and the frontend's logs know it."""


def raise_for_abort(finish_reason: dict[str, Any], *, shutting_down: bool) -> None:
    """Raise what an abort stands for; return for every end that the client should see.

    During a shutdown an abort is ours, whatever it carries, and the stream must migrate (rule 39);
    so that test comes before the error mapping (rule 89). An abort without error details is an
    ordinary cancellation and returns.

    Raises:
        EngineShutdown: an abort while `shutting_down`.
        InvalidArgument: SGLang rejected the request (status 400).
        HttpError: any other error of SGLang's; a code outside 400..599 becomes 500.
    """
    if finish_reason.get("type") == "abort":
        if shutting_down:
            raise EngineShutdown(SHUTDOWN_MESSAGE)
        _raise_if_sglang_error(finish_reason)
