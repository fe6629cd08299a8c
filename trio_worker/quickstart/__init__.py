# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A cluster on one machine: frontend, workers, and a model that proves itself by reciting.

For ``make serve``, ``make smoke`` and the end-to-end tests; a production worker uses none of it.
"""
