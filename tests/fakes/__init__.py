# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Stand-ins for the three parties of a request: SGLang's engine, Dynamo's context and sender.

The engine is SGLang's own ``TokenizerManager`` and ``Engine.async_generate``; only tokenization,
the sockets and the scheduler process behind them are ours (`engine`, `scheduler`). Context and
sender are written after what the Rust runtime was seen to do (`context`). All of it runs in
virtual time on the bridge's loop (`bridge`), and writes what happens into one `journal`.
"""
