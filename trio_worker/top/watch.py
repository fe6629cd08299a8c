# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""One worker, asked again and again; what is known of it stays when it does not answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
import trio

ANSWER_S = 2.0
"""Seconds that a worker gets to answer."""

HOST = "localhost"

View = dict[str, Any]


def base_url(text: str) -> str:
    """``http://host:port`` for that, for ``host:port``, or for a port of this machine.

    Raises ValueError.
    """
    if text.removeprefix(":").isdigit():
        text = f"{HOST}:{text.removeprefix(':')}"
    if "://" not in text:
        text = f"http://{text}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ValueError(f"not http://host:port of a worker's status server: {text}")
    return text.rstrip("/")


class Watched:
    """One worker behind one URL."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self.view: View | None = None
        """What it said last; None: nothing yet."""
        self.trouble = ""
        """Why it does not answer now; empty: it does."""
        self.silent_since: float | None = None
        """Trio's clock, seconds: when it was last heard, if it does not answer now."""
        self.restarts = 0
        self.tokens_per_s: float | None = None
        self.said = ""
        """The answer to what we asked it to do."""
        self._client = client
        self._heard_at = trio.current_time()

    async def look(self) -> None:
        """Trio. Ask once; never raises for what the worker or the network does."""
        try:
            with trio.fail_after(ANSWER_S):
                view = await self._post("inside", {})
                if "worker" not in view:
                    raise ValueError("not a trio-worker")
        except (httpx.HTTPError, ValueError, trio.TooSlowError) as error:
            self.trouble = _reason(error)
            if self.silent_since is None:
                self.silent_since = self._heard_at
            return
        now = trio.current_time()
        self._compare(view, now - self._heard_at)
        self.view, self.trouble, self.silent_since, self._heard_at = view, "", None, now

    async def write_flight(self) -> None:
        """Trio. Have it write its flight recorder."""
        try:
            with trio.fail_after(ANSWER_S):
                path = (await self._post("flight", {"file": True}))["path"]
            self.said = f"flight recorder: {path}" if path else "flight recorder: off"
        except (httpx.HTTPError, ValueError, KeyError, trio.TooSlowError) as error:
            self.said = f"flight recorder: {_reason(error)}"

    async def _post(self, route: str, body: dict[str, Any]) -> View:
        answer = await self._client.post(f"{self.url}/engine/{route}", json=body)
        answer.raise_for_status()
        view = answer.json()
        if not isinstance(view, dict):
            raise ValueError("not a trio-worker")
        return view

    def _compare(self, view: View, seconds: float) -> None:
        """What has changed since the last answer."""
        before = self.view
        self.tokens_per_s = None
        if before is None:
            return
        if before["worker"]["pid"] != view["worker"]["pid"]:
            self.restarts += 1
            self.said = ""
            return
        # By requests that are in both: what an ended one sent last is not known.
        then = {one["context"]: one["tokens"] for one in before["requests"]}
        sent = sum(one["tokens"] - then.get(one["context"], 0) for one in view["requests"])
        self.tokens_per_s = max(0, sent) / seconds if seconds > 0 else None


def _reason(error: Exception) -> str:
    """One short line."""
    if isinstance(error, trio.TooSlowError):
        return f"no answer for {ANSWER_S:g} s"
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:120] if text else type(error).__name__
