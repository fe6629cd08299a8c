# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Real frontend, real ``python -m trio_worker``, real engine; tests talk to them over HTTP."""
