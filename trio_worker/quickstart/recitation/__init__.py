# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A small model that recites one passage, word for word: lost or doubled tokens show at once."""

from __future__ import annotations

from trio_worker.quickstart.recitation.obtain import BuildFailed, obtain_model, recitation_model
from trio_worker.quickstart.recitation.passage import PASSAGE

__all__ = ["PASSAGE", "BuildFailed", "obtain_model", "recitation_model"]
