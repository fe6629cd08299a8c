# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Every time and limit of the request path: one home, with units and the rule that asks for it.

Read late, through the module (``constants.DRAIN_S``), so that a test can change one.
"""

from __future__ import annotations

DRAIN_S = 1.0
"""Seconds from a client's stop until its stream is given up; absolute (rule 45)."""

SHUTDOWN_ABORT_S = 1.0
"""Seconds that a worker shutdown waits for one request's ordered abort (rule 36)."""

REGISTRATION_WAIT_S = 30.0
"""Seconds that an ordered abort waits for its rid to register (rule 20)."""

OPENING_WAIT_S = 5.0
"""Seconds that an opening which waits for it gives SGLang to register its request (rule 86)."""

ABORT_POLL_FIRST_S = 0.001
ABORT_POLL_MAX_S = 0.05
"""Seconds between looks at SGLang's registry, doubling, where nothing wakes us (rules 19, 24)."""

ABORT_RETRY_LIMIT = 8
ABORT_RETRY_FIRST_S = 0.05
ABORT_RETRY_MAX_S = 1.0
"""Retries of an abort whose order can't be proven, and seconds between them (rule 31)."""

FEEDER_CLOSE_S = 0.05
"""Seconds that a leaving request waits for its feeder before it detaches it (rule 48)."""

EGRESS_FLUSH_S = 0.25
"""Seconds that an error waits for frames that a moving sender still holds (rule 121)."""

EGRESS_BACKLOG_FRAMES = 32
"""Frames that may wait for one sender before its chunks are left with the engine and merged."""

MERGE_OUTPUTS_AT = 64
"""Waiting outputs of one request beyond which they are merged into one."""

NOTIFY_OUTPUTS = 64
"""Outputs of one batch after which SGLang's receive loop lets others run, unless a flag says.

SGLang's own 16 costs a turn of the loop for every 16 requests in each step; 64 took 5 % off a
chunk's cost at 128 streams, and more than 64 nothing.
"""

EMBEDDINGS_RECEIVE_S = 65.0
"""Seconds that embeddings on their way may outlive their request; Dynamo's receiver gives 60."""

EMBEDDINGS_SENT_S = 10.0
"""Seconds that sent embeddings are kept for their receiver once their request has ended."""
