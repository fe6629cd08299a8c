# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One line for each thing that goes wrong, and its status."""

from __future__ import annotations

import pytest

from compat.runtime_errors import PortUnavailable, ServiceUnreachable
from trio_worker.errors import (
    BadArguments,
    ModelMissing,
    StartupExit,
    explain,
    model_missing,
    status_of,
)


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (BadArguments("--a excludes --b"), "--a excludes --b", 2),
        (ModelMissing("model 'm' is not there"), "model 'm' is not there", 1),
        (StartupExit(0), "StartupExit", 0),
        (ServiceUnreachable("etcd at a:1 can't be reached"), "etcd at a:1 can't be reached", 1),
        (PortUnavailable("DYN_SYSTEM_PORT=1: taken"), "DYN_SYSTEM_PORT=1: taken", 1),
        # Rust raises bare exceptions, whose type says nothing.
        (Exception("Check discovery\n  service status"), "Check discovery service status", 1),
        (ValueError("Unrecognized model"), "ValueError: Unrecognized model", 1),
        (RuntimeError(), "RuntimeError", 1),
        (Exception(), "Exception", 1),
        (
            FileNotFoundError(2, "No such file or directory", "/x"),
            "FileNotFoundError: [Errno 2] No such file or directory: '/x'",
            1,
        ),
        (
            ExceptionGroup("nursery", [ExceptionGroup("nursery", [OSError("a")]), OSError("b")]),
            "OSError: a; OSError: b",
            1,
        ),
        (ExceptionGroup("nursery", [OSError("a"), OSError("a")]), "OSError: a", 1),
    ],
)
def test_one_line_and_a_status(error: BaseException, line: str, status: int) -> None:
    assert explain(error) == line
    assert status_of(error) == status


@pytest.mark.parametrize(
    "text",
    [
        "Model snapshots for 'nobody/nothing' not found in cache",
        "Failed to fetch model 'nobody/nothing' at revision 'main' from HuggingFace. Is this a "
        "valid HuggingFace ID and revision? Error: request error",
    ],
)
def test_a_model_that_rust_could_not_fetch_is_a_missing_model(text: str) -> None:
    missing = model_missing(Exception(text))
    assert missing is not None
    assert missing.status == 1
    assert missing.line.startswith("model 'nobody/nothing' can't be found or fetched: ")


def test_other_errors_are_no_missing_model() -> None:
    assert model_missing(Exception("tcp connect error")) is None
    assert model_missing(ValueError("Failed to fetch model 'm'")) is None
