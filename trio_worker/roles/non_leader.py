# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A node that does not lead (R12): schedulers, their metrics and KV events, no requests.

It leaves when its schedulers do, whom rank 0 tells: leaving before would hang the group.
"""

from __future__ import annotations

import logging
import os
from contextlib import AbstractAsyncContextManager
from typing import Any

from dynamo.sglang.capacity import publishes_kv_events
from dynamo.sglang.gateway import effective_gateway_workers
from dynamo.sglang.publisher import (
    _resolve_multinode_leader_worker_ids as resolve_leader_worker_ids,
)

from compat.engine import FollowingEngine
from compat.futures import settle
from compat.loop import WorkerLoop
from compat.runtime import WorkerRuntime
from trio_worker.roles import Role
from trio_worker.roles.endpoints import endpoint_name
from trio_worker.roles.llm import open_publisher, open_sglang_as
from trio_worker.shutdown import StopReason
from trio_worker.worker import Worker

logger = logging.getLogger(__name__)

BLOCK_ENV = "SGLANG_BLOCK_NONZERO_RANK_CHILDREN"
"""Unless it is 0, SGLang's constructor stays until the schedulers exit."""


class NonLeaderRole(Role):
    """R12."""

    leads = False

    def prepare(self, config: Any) -> None:
        """Neither flavour. Let SGLang's constructor return."""
        super().prepare(config)
        os.environ[BLOCK_ENV] = "0"

    def open_engine(
        self, loop: WorkerLoop, config: Any, runtime: WorkerRuntime
    ) -> AbstractAsyncContextManager[FollowingEngine]:
        """Trio. ``sgl.Engine`` without a tokenizer manager."""
        return open_sglang_as(FollowingEngine, loop, config, runtime)

    async def serve(self, worker: Worker) -> None:
        """Trio. Publish for the local ranks; nothing is registered."""
        generate = worker.runtime.endpoint(endpoint_name(worker.config.dynamo_args))
        publisher, _labels = await open_publisher(worker, generate)
        logger.info(
            "Non-leader node detected (node_rank=%s). "
            "Running with metrics and KV event publishing for local DP ranks.",
            worker.config.server_args.node_rank,
        )
        worker.services.start_service(_leave_with_group, worker)
        if worker.config.dynamo_args.use_kv_events and publishes_kv_events(publisher.server_args):
            worker.services.start_service(_publish_kv_events, publisher)


async def _leave_with_group(worker: Worker) -> None:
    """Trio. A service: the end of the schedulers is ours."""
    assert isinstance(worker.engine, FollowingEngine)
    await worker.engine.group_ended.wait()
    worker.shutdown.request(StopReason.GROUP_ENDED)


async def _publish_kv_events(publisher: Any) -> None:
    """Trio. A service: KV events of the local ranks, under the name of every leader instance.

    The leader registers once the whole group has loaded; SGLang's ``--dist-timeout`` bounds the
    wait. Raises RuntimeError when there is none by then.
    """
    resolution = resolve_leader_worker_ids(
        publisher.generate_endpoint,
        publisher.server_args,
        effective_gateway_workers(publisher.server_args, publisher.dynamo_args),
    )
    for worker_id in await settle(resolution):
        publisher.kv_worker_id = worker_id
        publisher.init_kv_event_publish()
