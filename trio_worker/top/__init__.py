# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``trio-worker top``: what running workers tell of themselves, in a terminal, refreshing.

`watch` asks them, `render` draws, `terminal` puts it on the screen and reads keys. Nothing of the
worker itself is imported here, nor this by the worker.
"""
