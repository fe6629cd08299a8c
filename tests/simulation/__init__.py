# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The whole request path under chance that can be repeated.

A seed says a `case`: requests, what the engine does with each, who acts when. `play` runs it: the
real façade, requests, tap, aborts, feeders and egress around SGLang's real tokenizer manager
(`tests.fakes`), under Trio's seeded scheduler and the mock clock. `invariants` judges the record.
The same seed gives the same record, event by event, in any process (`conditions` pins what would
differ), so a failing seed is its own reproduction: ``python -m tests.simulation --replay SEED``.

Not simulated: the carrier threads (`carriers` has Trio tasks in their place;
``tests/compat/test_senders.py`` has the threads), the Rust runtime, and SGLang's scheduler.
"""
