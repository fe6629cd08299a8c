# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the incumbent offers and what we do, found in both code bases and set side by side."""
