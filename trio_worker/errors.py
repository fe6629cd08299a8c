# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Bad input in one line that names the cause, and the exit status that goes with it."""

from __future__ import annotations

import re

from compat.runtime_errors import RuntimeTrouble

# Not from `trio_worker.shutdown`: this is needed before anything slow is imported.
FAILED = 1
USAGE = 2


class StartupExit(Exception):
    """Start-up ends here, with `status`. `line` is what to say; empty if it has been said."""

    def __init__(self, status: int, line: str = "") -> None:
        super().__init__(line)
        self.status = status
        self.line = line


class BadArguments(StartupExit):
    """The command line, or a variable that stands for a flag, asks for what can't be."""

    def __init__(self, line: str = "") -> None:
        super().__init__(USAGE, line)


class ModelMissing(StartupExit):
    """The model is not where the command line says."""

    def __init__(self, line: str) -> None:
        super().__init__(FAILED, line)


def explain(error: BaseException) -> str:
    """What went wrong, on one line without a traceback; groups are looked through.

    The type's name comes first, unless the text says all: where we wrote it, and where Rust raises
    bare ``Exception``s.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(explain, error.exceptions)))
    text = " ".join(str(error).split())
    if text and (type(error) is Exception or isinstance(error, StartupExit | RuntimeTrouble)):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def status_of(error: BaseException) -> int:
    """The exit status of a process whose start-up ended with `error`."""
    return error.status if isinstance(error, StartupExit) else FAILED


_UNFETCHED = re.compile(
    r"(?:Model snapshots for|Failed to fetch model|model) '(?P<name>[^']+)'", re.IGNORECASE
)


def model_missing(error: Exception) -> ModelMissing | None:
    """Rust's failure to fetch a model, told as what it is; None for any other error.

    ``fetch_model`` takes every path that does not exist for a name on the Hugging Face hub.
    """
    if type(error) is not Exception or (match := _UNFETCHED.search(str(error))) is None:
        return None
    return ModelMissing(f"model {match['name']!r} can't be found or fetched: {explain(error)}")
