# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The way out (DESIGN §6): `plan` carries it out, `paths` and `parts` are what it knows."""

from trio_worker.shutdown.leaving import leave
from trio_worker.shutdown.parts import (
    Children,
    Engine,
    LiveRequests,
    Parts,
    Runtime,
    Services,
    Serving,
)
from trio_worker.shutdown.paths import Bounds, ExitStatus, Phase, StopReason
from trio_worker.shutdown.plan import PhaseRecord, Shutdown, ShutdownView

__all__ = [
    "Bounds",
    "Children",
    "Engine",
    "ExitStatus",
    "LiveRequests",
    "Parts",
    "Phase",
    "PhaseRecord",
    "Runtime",
    "Services",
    "Serving",
    "Shutdown",
    "ShutdownView",
    "StopReason",
    "leave",
]
