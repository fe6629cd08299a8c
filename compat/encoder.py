# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""SGLang's ``MMEncoder``, which works in this process, seen from Trio."""

from __future__ import annotations

import asyncio
from typing import Any

from compat.feeders import Feeder
from compat.host import EngineHost


class EncoderHost(EngineHost):
    """One encode handler of Dynamo's; its ``encoder`` was built with it, off the loop's thread."""

    @property
    def child_pids(self) -> list[int]:
        """None: it has no process but ours."""
        return []

    @property
    def resolved_server_args(self) -> Any:
        """The encoder's own."""
        return self.engine.encoder.server_args

    async def adopt(self) -> None:
        """Trio. The device that the encoder has chosen holds for its own thread only."""
        encoder = self.engine.encoder
        device = str(getattr(encoder, "device", "cpu")).partition(":")[0]
        if device != "cpu":
            import torch

            torch.get_device_module(device).set_device(encoder.gpu_id)

    async def end(self, deadline: float) -> None:
        """Trio. End the sender's task, which nobody else does: it keeps its owner alive (C57)."""
        task: asyncio.Task[None] | None = getattr(
            self.engine.embedding_sender, "_state_update_task", None
        )
        if task is not None:
            task.cancel()
            await Feeder(task).wait_ended()
