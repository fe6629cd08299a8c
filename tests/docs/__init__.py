# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The docs say what the code is: names, numbers, links, excerpts and pictures are checked.

Nothing here imports SGLang or Dynamo: what the code says is read from its source.
"""
