# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One line that names the cause, for whoever reads the end of the log."""

from __future__ import annotations


def explain(error: BaseException) -> str:
    """What went wrong, on one line; groups of one and chains are looked through."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(explain(inner) for inner in error.exceptions)
    return f"{name}: {text}" if text else name
