# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""With the collector off nothing of ours stays, and a request is freed when it ends (rule 55)."""
