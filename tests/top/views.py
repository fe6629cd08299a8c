# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Answers of the engine route ``inside``, as a worker gives them."""

from __future__ import annotations

from typing import Any


def request(number: int, **more: Any) -> dict[str, Any]:
    return {
        "rid": f"rid-{number}",
        "context": f"context-{number}",
        "role": "decode",
        "phase": "streaming",
        "age_s": 1.5,
        "accepted": 10,
        "tokens": 20,
        "backlog": 0,
        "stuck_s": 0.0,
        "deadline_in_s": None,
        **more,
    }


def view(*requests: dict[str, Any], pid: int = 7, **more: Any) -> dict[str, Any]:
    return {
        "worker": {
            "pid": pid,
            "version": "0",
            "role": "decode",
            "model": "model",
            "uptime_s": 3700.0,
        },
        "tree": {},
        "asyncio_tasks": {},
        "requests": list(requests),
        "requests_left_out": 0,
        "counts": {
            "admitted": 12,
            "live": len(requests),
            "migrated": 0,
            "refused": 0,
            "drains_ended": 0,
            "drains_timed_out": 0,
        },
        "engine_registry": 0,
        "aborts": {"sent": 3, "confirmed": 2, "pending": []},
        "feeders": {"running": 0, "started": 0, "detached": 0, "adrift": []},
        "senders": {"stuck": 0},
        "garbage": {"longest_pause_s": 0.012},
        "shutdown": {"reason": None, "active": {}, "seconds_left": None, "phases": []},
        **more,
    }
