# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's own tests of cancellation, run against both implementations.

They are installed with ``ai-dynamo`` and are run where they lie, in a process of their own
(`run`), with a plugin (`plugin`) and no copy. Against the incumbent they run on plain asyncio, in
a process that has not imported trio-asyncio. Against ours the handler classes that they import
are rebound to an adapter (`peer`), and each test's coroutine runs on the worker's loop, under
Trio. Tests of the incumbent's private methods say nothing about ours and are left out, each with
its reason (`not_applicable`).
"""
