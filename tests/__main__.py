# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m tests``: pytest with the arguments given, and an end that cannot crash.

Interpreter teardown is not safe with SGLang's dependencies loaded: sentencepiece's module may
use a type that is gone already (each time on Python 3.12), and a passed run then ends with a
segmentation fault, as one has on 3.11. The worker does not tear down either.
"""

from __future__ import annotations

import pytest

from trio_worker.shutdown.leaving import leave

if __name__ == "__main__":
    leave(pytest.main())
