# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The requests that send one full chunk on every step, as parallel columns.

The columns are what the wire format wants. They change only when a request joins or leaves, so a
step costs two list comprehensions instead of Python work per request; ``del`` from a list of a
thousand is cheaper than building it again.
"""

from __future__ import annotations

from typing import Any

from trio_worker.standin.request import SURROUNDING_TOKENS, Request


class Roster:
    """Columns of the requests in it.

    letters[i] and counts[i] are constants of arithmetic: at step s request i sends the chunk
    that starts with letter ``letters[i] + s * tokens_per_step`` and has then generated
    ``counts[i] + s * tokens_per_step`` tokens.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.rids: list[str] = []
        self.http_worker_ipcs: list[str | None] = []
        self.letters: list[int] = []
        self.counts: list[int] = []
        self.prompt_tokens: list[int] = []
        self.read_offsets: list[int] = []
        self.skip_special_tokens: list[bool] = []
        self.spaces_between_special_tokens: list[bool] = []
        self.no_stop_trim: list[bool] = []
        self.retraction_counts: list[int] = []
        self.time_stats: list[Any] = []

    def __len__(self) -> int:
        return len(self.requests)

    def join(self, request: Request, *, letter: int, count: int) -> None:
        request.in_roster = True
        self.requests.append(request)
        self.rids.append(request.rid)
        self.http_worker_ipcs.append(request.http_worker_ipc)
        self.letters.append(letter)
        self.counts.append(count)
        self.prompt_tokens.append(request.prompt_tokens)
        self.read_offsets.append(min(request.prompt_tokens, SURROUNDING_TOKENS))
        self.skip_special_tokens.append(request.skip_special_tokens)
        self.spaces_between_special_tokens.append(request.spaces_between_special_tokens)
        self.no_stop_trim.append(request.no_stop_trim)
        self.retraction_counts.append(request.retractions)
        self.time_stats.append(request.time_stats)

    def leave(self, request: Request) -> None:
        request.in_roster = False
        i = self.requests.index(request)
        del (
            self.requests[i],
            self.rids[i],
            self.http_worker_ipcs[i],
            self.letters[i],
            self.counts[i],
            self.prompt_tokens[i],
            self.read_offsets[i],
            self.skip_special_tokens[i],
            self.spaces_between_special_tokens[i],
            self.no_stop_trim[i],
            self.retraction_counts[i],
            self.time_stats[i],
        )
