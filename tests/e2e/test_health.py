# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What an operator asks the worker's status server."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest
import trio

from tests.e2e.served import Served
from trio_worker.quickstart.chat import get
from trio_worker.quickstart.cluster import READY_LINE
from trio_worker.standin.events import read_events

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

CANARY_S = 30.0
"""Seconds in which a canary must come; this cluster's is due after two without a request."""


@pytest.mark.parametrize("path", ["/health", "/live"])
async def test_ready(served: Served, path: str) -> None:
    status, body = await get(served.system_port, path)
    assert status == 200
    answer = json.loads(body)
    assert answer["status"] == "ready"
    assert answer["endpoints"]["generate"] == "ready"


async def test_metrics_of_runtime_and_engine(served: Served) -> None:
    before = await served.metric("dynamo_component_requests_total", dynamo_endpoint="generate")
    answer = await served.ask("Recite.", max_tokens=5)
    assert answer.errors == []
    after = await served.metric("dynamo_component_requests_total", dynamo_endpoint="generate")
    assert after == before + 1
    assert await served.metric("sglang:generation_tokens_total") >= 5


def test_heap_is_frozen_before_the_first_request(served: Served) -> None:
    """The collection before it holds the loop for seconds: nobody may wait behind it."""
    output = served.worker.output()
    assert 0 < output.index("Froze ") < output.index(READY_LINE)


async def test_canary_asks_when_nobody_does(stand_in: Served) -> None:
    def asked() -> int:
        return len(read_events(stand_in.backing.log, "arrive"))

    before = asked()
    with trio.fail_after(CANARY_S):
        while asked() == before:
            await trio.sleep(0.1)
    await stand_in.wait_idle()
    status, _ = await get(stand_in.system_port, "/health")
    assert status == 200


async def test_all_endpoints_of_the_role_are_registered(served: Served) -> None:
    instances = [unquote(path.name) for path in served.cluster.registered()]
    for endpoint in ("generate", "load_lora", "unload_lora", "list_loras", "clear_kv_blocks"):
        assert any(f"/{endpoint}/" in name for name in instances), instances
