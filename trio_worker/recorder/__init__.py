# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The flight recorder: what happened to the last few thousand requests, and when.

`ring` keeps it, `trace` gives it Perfetto's form, `files` writes it down, `picture` draws it
(``python -m trio_worker.recorder draw FILE``). Never prompts or answers.
"""

from trio_worker.recorder import events
from trio_worker.recorder.ring import Event, Note, Recorder

__all__ = ["Event", "Note", "Recorder", "events"]
