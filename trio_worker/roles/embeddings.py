# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Who holds a request's embeddings on their way between the multimodal roles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from compat.downstream import to_its_end
from trio_worker import constants

logger = logging.getLogger(__name__)


class ReceivedEmbeddings:
    """The embeddings processor of one request, which holds what it has received until `release`.

    Stands in for ``EmbeddingsProcessor`` while a request is planned: what the incumbent lets go
    when its stream ends, ours still needs then.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._held: list[Any] = []

    async def process_embeddings(self, request: Any) -> tuple[Any, Any]:
        """asyncio. Receive; a request that ends meanwhile waits for that, or a buffer is lost.

        A receiver that is cancelled forgets the buffer which the sender still writes to.
        """

        async def receive() -> tuple[Any, Any]:
            embeddings, tensor_id = await self._processor.process_embeddings(request)
            self._held.append(tensor_id)
            return embeddings, tensor_id

        return await to_its_end(receive, constants.EMBEDDINGS_RECEIVE_S)

    def release_embeddings(self, _tensor_id: Any) -> None:
        """asyncio. Not yet: `release` does it."""

    def release(self) -> None:
        """Trio or asyncio. Let go of everything; idempotent."""
        held, self._held = self._held, []
        for tensor_id in held:
            try:
                self._processor.release_embeddings(tensor_id)
            except Exception:
                logger.exception("Failed to release multimodal embeddings allocation %s", tensor_id)

    async def release_at_end(self) -> None:
        """asyncio. The same, for `Plan.release`."""
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)


class SentEmbeddings:
    """The embedding sender of one request, which owns the transfers that it has started.

    The incumbent awaits them after the downstream stream, and only if that ended well (C56).
    """

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._transfers: list[Awaitable[None]] = []

    async def send_embeddings(self, *args: Any, **kwargs: Any) -> tuple[Any, Awaitable[None]]:
        """asyncio. Start a transfer; it is ours to await."""
        request, transfer = await self._sender.send_embeddings(*args, **kwargs)
        self._transfers.append(transfer)
        return request, _nothing()

    async def release(self) -> None:
        """asyncio. Wait until what was sent has arrived, within a bound; then let go."""
        try:
            while self._transfers:
                await _settle(self._transfers.pop(0))
        finally:
            for transfer in self._transfers:
                _drop(transfer)
            self._transfers.clear()


async def _settle(transfer: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(constants.EMBEDDINGS_SENT_S):
            await transfer
    except TimeoutError:
        logger.warning(
            "Embeddings were not fetched within %g s after their request ended",
            constants.EMBEDDINGS_SENT_S,
        )
    except Exception:
        logger.exception("Transfer of embeddings failed")


def _drop(transfer: Any) -> None:
    """A future is cancelled, a coroutine closed, so that it is not missed by anybody."""
    (transfer.close if asyncio.iscoroutine(transfer) else transfer.cancel)()


class _Nothing:
    """What the incumbent may await instead of a transfer."""

    def __await__(self) -> Any:
        return iter(())


def _nothing() -> Awaitable[None]:
    return _Nothing()
