# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What a role decides about one request before anything reaches the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from compat.handover import Chunk
from trio_worker.responses import Responses


class Uploader(Protocol):
    """``dynamo.common.metadata_upload.MetadataUploader``."""

    async def upload_choice(self, index: int, meta_info: dict[str, Any]) -> None:
        """asyncio. Store one choice's metadata."""


@dataclass(slots=True)
class Plan:
    """How one request is submitted, watched and answered."""

    engine_rid: str
    """What SGLang is told: ``uuid4().hex``, never the caller's id, sessions apart (rules 4, 7)."""

    ordered: bool
    """Abort by the submitted rid, in order (rules 1-4); otherwise by response ids (rule 5)."""

    submit: Callable[[], Awaitable[AsyncIterator[Chunk]]]
    """asyncio. Gives the request to SGLang; its chunks, in order."""

    responses: Responses

    merge: Callable[[list[Chunk]], list[Chunk]]
    """How chunks that wait for a slow consumer are merged."""

    tapped: bool = False
    """Outputs may leave SGLang through the tap."""

    choices: int = 1
    """Samples per prompt times prompts."""

    drains: bool = True
    """After a client's stop the stream is read on until it ends, or the drain's deadline. False:
    it is closed at once, which also aborts; all that could come is an answer nobody waits for."""

    uploader: Uploader | None = None

    opening: Any = None
    """Sent before anything is submitted (a prefill's bootstrap info, rule 83)."""

    opening_waits: bool = False
    """The opening is sent once SGLang has given the request to its scheduler, not before."""

    closing: Callable[[], Any] | None = None
    """Asked once the stream has ended by itself: a last response, or None (rules 83, 85)."""

    in_band: Callable[[Exception], Any] | None = None
    """The response that tells of an error of the stream; None: the error itself is raised."""

    release: Callable[[], Awaitable[None]] | None = None
    """asyncio. Awaited once the stream is closed, however it ended: what the plan holds goes."""
