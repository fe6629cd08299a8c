# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The one import point of the event loop that the fakes, the incumbent and ours run on.

It is the worker's own. With the autojump clock all of its timers are virtual; it records SGLang's
signal handlers and installs none.
"""

from compat.loop import open_loop

__all__ = ["open_loop"]
