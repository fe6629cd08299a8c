# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""How the encode role comes up and goes: who is waited for, what is told of its health."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
from dynamo.common.constants import EmbeddingTransferMode
from dynamo.common.model_taints import MODEL_TAINT_ROUTE
from dynamo.llm import ModelInput, ModelType, WorkerType

from compat.loop import open_loop
from tests.roles.test_serving import NAME, RecordingRuntime, worker_of
from trio_worker.roles import encode
from trio_worker.roles.endpoints import LEASE_PROBE


class EncodeRuntime(RecordingRuntime):
    """With clients, and a health that is told."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime.set_health_status = lambda ready: self.calls.append(f"healthy {ready}")

    async def client(self, path: str) -> Any:
        self.calls.append(f"client {path}")
        return path

    async def wait_instances(self, client: Any, path: str) -> None:
        self.calls.append(f"wait {path}")


async def test_the_front_door_opens_when_somebody_can_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[dict[str, Any]] = []

    async def register(_engine: Any, _endpoint: Any, *_args: Any, **options: Any) -> None:
        registered.append(options)

    monkeypatch.setattr(encode, "register_model_with_readiness_gate", register)
    runtime = EncodeRuntime()
    handler = encode.EncodeRequests.__new__(encode.EncodeRequests)
    handler._embedding_cache = None
    worker = worker_of(
        runtime,
        SimpleNamespace(engine=handler),
        embedding_transfer_mode=EmbeddingTransferMode.LOCAL,
        multimodal_embedding_cache_capacity_gb=0,
        multimodal_embedding_cache_publisher=False,
    )
    handler.config = worker.config
    async with open_loop(), trio.open_nursery() as nursery:
        worker.services = SimpleNamespace(start_service=nursery.start_soon)
        await encode.EncodeRole().serve(worker)
        await trio.testing.wait_all_tasks_blocked()
        assert runtime.calls == [
            "make ns.part.gen",
            f"make ns.part.{LEASE_PROBE}",
            "client ns.backend.generate",
            "wait ns.backend.generate",
            f"route {MODEL_TAINT_ROUTE}",
            "serve ns.part.gen",
            f"serve ns.part.{LEASE_PROBE}",
            "register",
            "healthy True",
        ]
        nursery.cancel_scope.cancel()
    assert runtime.calls[-1] == "healthy False"
    _, options = runtime.served["ns.part.gen"]
    assert options["metrics_labels"] == [("model", NAME), ("model_name", NAME)]
    assert "health_check_payload" not in options
    (told,) = registered
    assert told["input_type"] is ModelInput.Tokens
    assert str(told["output_type"]) == str(ModelType.Chat | ModelType.Completions)
    assert told["worker_type"] == WorkerType.Encode
    assert told["needs"] == [
        [WorkerType.Prefill, WorkerType.Decode],
        [WorkerType.Aggregated],
    ]
    assert handler.pd_worker_client == "ns.backend.generate"
