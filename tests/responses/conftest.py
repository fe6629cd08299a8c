# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Loads SGLang when the tests are collected, before any test's time-out runs."""

import tests.fakes.heavy  # noqa: F401 (imported for its cost)
