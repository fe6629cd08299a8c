# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Trials of the stop: two workers, a frontend that migrates, and one worker that is taken away.

============  =====================================================================
cases         the ways in which a worker goes, and what must come of each
members       workers, ours or the incumbent's: started, known by what they register
trial         one worker taken away under streams, and what everybody saw
rolling       every worker replaced in turn, under load
results       sums, table, JSON
============  =====================================================================

``python -m tests.trials --help``; ``make trials`` runs it.
"""
