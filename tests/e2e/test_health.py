# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What an operator asks the worker's status server."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from tests.e2e.served import Served
from trio_worker.quickstart.chat import get

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


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


async def test_all_endpoints_of_the_role_are_registered(served: Served) -> None:
    instances = [unquote(path.name) for path in served.cluster.registered()]
    for endpoint in ("generate", "load_lora", "unload_lora", "list_loras", "clear_kv_blocks"):
        assert any(f"/{endpoint}/" in name for name in instances), instances
