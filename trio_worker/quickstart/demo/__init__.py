# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``make demo``: two workers, one recitation, and a stop in mid-sentence that nobody notices.

`story` is what happens, `scene` what there is to see of it, `screens` how it is shown.
"""
