# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

import tests.fakes.heavy  # noqa: F401 (pays SGLang's import before per-test time-outs start)
