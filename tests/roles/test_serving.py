# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""How the roles that answer once come up: endpoints, payloads, routes, registration, in order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
import trio_asyncio

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)

# isort: split
from dynamo.common.model_taints import MODEL_TAINT_ROUTE
from dynamo.llm import ModelInput, ModelType, WorkerType
from dynamo.sglang import register as registering
from dynamo.sglang.request_handlers.embedding import metrics

from compat.generator import GeneratorHost
from compat.loop import open_loop
from compat.permanent_thread import PermanentThread
from compat.senders import Senders
from tests.fakes.generator import FakeGenerator
from trio_worker.roles import media, pooling
from trio_worker.roles.endpoints import LEASE_PROBE, answer_probe

NAME = "model-name"


class RecordingRuntime:
    """`WorkerRuntime` as far as a role uses it; serves nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.served: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.runtime = SimpleNamespace(register_engine_route=self._route)

    def endpoint(self, path: str) -> Any:
        self.calls.append(f"make {path}")
        endpoint = MagicMock()
        endpoint.path = path
        return endpoint

    def serve(self, endpoint: Any, handler: Any, **options: Any) -> None:
        self.calls.append(f"serve {endpoint.path}")
        self.served[endpoint.path] = (handler, options)

    async def register(self, registration: Callable[[], Any]) -> None:
        self.calls.append("register")
        await trio_asyncio.aio_as_trio(registration)()

    def _route(self, path: str, _handler: Any) -> None:
        self.calls.append(f"route {path}")


def worker_of(runtime: RecordingRuntime, engine: Any, **dynamo_args: Any) -> Any:
    server_args = SimpleNamespace(
        served_model_name=NAME, model_path="path", enable_trace=False, enable_metrics=False
    )
    return SimpleNamespace(
        runtime=runtime,
        engine=engine,
        senders=Senders(),
        requests=SimpleNamespace(),
        config=SimpleNamespace(
            server_args=server_args,
            serving_mode=None,
            dynamo_args=SimpleNamespace(
                namespace="ns",
                component="part",
                endpoint="gen",
                use_sglang_tokenizer=False,
                media_output_fs_url="file:///tmp",
                media_output_http_url=None,
                output_modalities=["text"],
                **dynamo_args,
            ),
        ),
    )


def pooling_engine() -> Any:
    manager = SimpleNamespace(
        tokenizer=SimpleNamespace(chat_template="", bos_token_id=7),
        model_config=SimpleNamespace(model_path="path", vocab_size=10),
    )
    server_args = SimpleNamespace(served_model_name=NAME)

    async def async_generate(**_options: Any) -> None:
        """asyncio."""

    engine = SimpleNamespace(
        tokenizer_manager=manager, server_args=server_args, async_generate=async_generate
    )
    return SimpleNamespace(engine=engine)


ORDER = [
    "make ns.part.gen",
    f"make ns.part.{LEASE_PROBE}",
    f"route {MODEL_TAINT_ROUTE}",
    "serve ns.part.gen",
    f"serve ns.part.{LEASE_PROBE}",
    "register",
]


@pytest.mark.parametrize(
    ("role_class", "flag", "model_type", "payload"),
    [
        (
            pooling.EmbeddingRole,
            "embedding_worker",
            ModelType.Embedding,
            {"model": NAME, "input": [7]},
        ),
        (
            pooling.RerankRole,
            "rerank_worker",
            ModelType.Rerank,
            {"model": NAME, "query": "health check", "documents": ["health check"]},
        ),
    ],
)
async def test_a_pooling_role_comes_up_in_order(
    role_class: type, flag: str, model_type: Any, payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[dict[str, Any]] = []

    async def register(_engine: Any, _endpoint: Any, *_args: Any, **options: Any) -> None:
        registered.append(options)

    monkeypatch.setattr(pooling, "register_model_with_readiness_gate", register)
    monkeypatch.delenv("DYN_HEALTH_CHECK_PAYLOAD", raising=False)
    metrics.reset_metrics_for_testing()
    runtime = RecordingRuntime()
    try:
        async with open_loop():
            await role_class().serve(worker_of(runtime, pooling_engine(), **{flag: True}))
    finally:
        metrics.reset_metrics_for_testing()
    assert runtime.calls == ORDER
    _, options = runtime.served["ns.part.gen"]
    assert options["metrics_labels"] == [("model", NAME)]
    assert options["health_check_payload"] == payload
    assert registered == [
        {
            "input_type": ModelInput.Text,
            "output_type": model_type,
            "worker_type": WorkerType.Aggregated,
            "needs": [],
        }
    ]


@pytest.mark.parametrize(
    ("role_class", "model_type"),
    [(media.ImageRole, "chat,images"), (media.VideoRole, "videos")],
)
async def test_a_media_role_comes_up_in_order(
    role_class: type, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[tuple[Any, ...]] = []

    async def register_model(*args: Any, **options: Any) -> None:
        registered.append((*args, options))

    monkeypatch.setattr(registering, "register_model", register_model)
    runtime = RecordingRuntime()
    async with open_loop() as loop:
        host = GeneratorHost(FakeGenerator(), loop, PermanentThread("test-generator"))
        await role_class().serve(worker_of(runtime, host))
        host.side.close()
    assert runtime.calls == ORDER
    _, options = runtime.served["ns.part.gen"]
    assert options["metrics_labels"] == []
    assert options["health_check_payload"]["prompt"] == "test"
    (arguments,) = registered
    assert (arguments[0], str(arguments[1])) == (ModelInput.Text, model_type)
    assert arguments[3:] == ("path", NAME, {"worker_type": WorkerType.Aggregated, "needs": []})


@pytest.mark.parametrize("role_class", [media.ImageRole, media.VideoRole])
def test_a_media_role_wants_a_model(role_class: type) -> None:
    config = SimpleNamespace(server_args=SimpleNamespace(model_path=None))
    with pytest.raises(ValueError, match="--model is required for"):
        role_class().open_engine(None, config, None)


async def test_the_probe_answers_once() -> None:
    async def ask() -> list[Any]:
        return [answer async for answer in answer_probe({})]

    async with open_loop() as loop:
        task = loop.create_task(ask())
        while not task.done():
            await trio.sleep(0.001)
    assert task.result() == [{"status": "ok"}]
