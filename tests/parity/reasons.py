# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Where ours differs from the incumbent on purpose, and why. All else counts as missing."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Reason:
    """Explains a difference in things of one kind whose name matches."""

    kind: str
    name: str
    why: str
    has: Literal["ours", "theirs", "both"] = "ours"
    """Who has it; both: with different values."""
    role: str = r".*"
    documented: Path | None = None
    """The page that has to name it, too."""

    def explains(
        self, role: str, kind: str, name: str, incumbent: str | None, ours: str | None
    ) -> bool:
        """Whether this is it."""
        has = "both" if incumbent and ours else "ours" if ours else "theirs"
        return (
            (kind, has) == (self.kind, self.has)
            and re.fullmatch(self.role, role) is not None
            and re.fullmatch(self.name, name) is not None
            and (self.documented is None or _names(self.documented, name))
        )


@functools.cache
def _told(page: Path) -> str:
    return page.read_text() if page.exists() else ""


def _names(page: Path, name: str) -> bool:
    return f"`{name}`" in _told(page)


REASONS = (
    Reason(
        "engine route",
        "inside|flight",
        "what the worker is doing, for operators; the incumbent has nothing like it",
    ),
    Reason(
        "endpoint",
        r".*\.lease_probe",
        "roles without control endpoints serve one that is never busy, so that a lost lease is "
        "seen at once",
    ),
    Reason(
        "environment set",
        "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
        "the runtime's own drain (900 s) is made to fit the shutdown plan; a smaller value of the "
        "operator's stays",
    ),
    Reason(
        "child process",
        r"child \d: program",
        "a gateway's children are workers of the same kind as their parent",
        has="both",
    ),
    Reason(
        "flag",
        "--version",
        "answered at once, with our version, Dynamo's and SGLang's",
        has="both",
    ),
    Reason(
        "metric",
        "dynamo_component_.*",
        "what the worker sees of itself, see metrics.md",
        documented=DOCS / "metrics.md",
    ),
    Reason(
        "setting",
        "enable_forward_pass_metrics",
        "for snapshots, the incumbent checks what it has switched off itself; so do we, without "
        "the check",
        has="theirs",
    ),
    Reason(
        "environment set",
        "PYTHONHASHSEED",
        "set for the worker's children; what R16 becomes is no Python",
        has="theirs",
        role="R16",
    ),
    Reason(
        "flag",
        "--.*",
        "ours, see [the command line](cli.md#ours)",
        documented=DOCS / "cli.md",
    ),
)


def reason_for(role: str, kind: str, name: str, incumbent: str | None, ours: str | None) -> str:
    """Empty: there is none."""
    found = (one.why for one in REASONS if one.explains(role, kind, name, incumbent, ours))
    return next(found, "")
