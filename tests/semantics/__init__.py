# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Every rule of request cancellation, shutdown and migration, as one test each.

A test says a `scenario` (what the engine does, what the client and the worker do, and when, in
virtual seconds), an implementation runs it (`harness`), and the test judges what was observed.
The incumbent, ``dynamo.sglang`` as installed, is the oracle: rules that it does not keep on
purpose are strict expected failures of it, and a second test pins what it does instead.

Rules about the process (91-108, 122-128) are proved where the process is; `rules` says where.
"""
