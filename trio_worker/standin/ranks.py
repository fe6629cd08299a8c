# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that have no sockets: they wait until rank 0 of their group is gone.

SGLang's rank 0 broadcasts every message, ShutdownReq too, over the group's collectives. The
stand-in has none; its followers hold a connection to the leader and leave when it closes, whatever
the reason. The meeting point is an abstract Unix socket, so all ranks must be on one machine (two
"nodes" of a test are).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

_RETRY_S = 0.1


def meeting_point(group: str, dp_rank: int | None) -> str:
    """group: what all ranks of one engine share and no other has, like its dist_init_addr."""
    return f"\0trio-worker-stand-in/{group}/{dp_rank}"


def lead(point: str) -> socket.socket:
    """Open the meeting point. Followers leave when the socket (and the process) is gone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(point)
    listener.listen(64)
    return listener


def follow(point: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Block until the leader is gone; waits for a leader that is still starting."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        while True:
            try:
                connection.connect(point)
                break
            except (ConnectionRefusedError, FileNotFoundError):
                sleep(_RETRY_S)
        try:
            connection.recv(1)
        except ConnectionResetError:
            return
