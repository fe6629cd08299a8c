# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Dynamo's own push egress, which its SGLang worker does not use; for the bench only.

It lives in a package whose ``__init__`` needs another engine, so the module is loaded by path.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dynamo


def _module() -> Any:
    for folder in dynamo.__path__:
        file = Path(folder) / "trtllm" / "request_handlers" / "push_egress.py"
        if file.exists():
            spec = importlib.util.spec_from_file_location("bench_push_egress", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise FileNotFoundError("this Dynamo has no push egress")


push_egress_capable: Callable[[Any], Any] = _module().push_egress_capable
