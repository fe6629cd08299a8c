# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The incumbent's handlers, as installed, for the harness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio_asyncio
from dynamo.common.constants import EmbeddingTransferMode
from dynamo.sglang.args import Config
from dynamo.sglang.request_handlers import (
    MultimodalPrefillWorkerHandler,
    MultimodalWorkerHandler,
)
from dynamo.sglang.request_handlers.llm.decode_handler import DecodeWorkerHandler
from dynamo.sglang.request_handlers.llm.diffusion_handler import DiffusionWorkerHandler
from dynamo.sglang.request_handlers.llm.prefill_handler import PrefillWorkerHandler

from tests.fakes.context import FakeContext, FakeResponseSender
from tests.fakes.engine import FakeEngine
from tests.fakes.multimodal import FakeClient, FakeEmbeddingsProcessor

from .harness import Run
from .scenario import Scenario

HANDLERS = {
    "decode": DecodeWorkerHandler,
    "prefill": PrefillWorkerHandler,
    "dllm": DiffusionWorkerHandler,
    "multimodal": MultimodalWorkerHandler,
    "multimodal prefill": MultimodalPrefillWorkerHandler,
}


def handler_of(
    handler_class: Any, engine: FakeEngine, scenario: Scenario, shutdown_event: Any
) -> Any:
    """A handler of either implementation, built by its own constructor."""
    config = Config(
        engine.server_args,
        SimpleNamespace(
            use_sglang_tokenizer=scenario.requests[0].mode == "text",
            enable_rl=scenario.upload is not None,
            embedding_transfer_mode=EmbeddingTransferMode.LOCAL,
        ),
    )
    arguments: tuple[Any, ...] = (None, None, shutdown_event)
    if scenario.role == "multimodal":
        client = FakeClient(engine.journal, scenario.prefill) if scenario.disaggregated else None
        arguments = (client, shutdown_event)
    elif scenario.role == "multimodal prefill":
        arguments = (shutdown_event,)
    handler = handler_class(engine_as_shown(engine, scenario), config, *arguments)
    if scenario.role.startswith("multimodal"):
        handler.embeddings_processor = FakeEmbeddingsProcessor(engine.journal, scenario.embeddings)
    if scenario.upload is not None:
        handler._metadata_uploader_from_request = lambda _request: scenario.upload
    return handler


class IncumbentSubject:
    """One of the incumbent's handlers, built by its own constructor."""

    def __init__(self, engine: FakeEngine, scenario: Scenario) -> None:
        self._shutdown_event = asyncio.Event()
        self.handler = handler_of(
            HANDLERS[scenario.role],
            engine,
            scenario,
            self._shutdown_event if scenario.shutdown_event else None,
        )

    def generate(
        self, request: dict[str, Any], context: FakeContext, sender: FakeResponseSender | None
    ) -> AsyncGenerator[Any, None]:
        assert sender is None, (
            "the incumbent is on the pull path (incumbent-features.md, section 3)"
        )
        stream: AsyncGenerator[Any, None] = self.handler.generate(request, context)
        return stream

    def shutdown(self) -> None:
        self._shutdown_event.set()

    def cleanup(self) -> None:
        self.handler.cleanup()

    @property
    def pending_aborts(self) -> int:
        return len(self.handler._abort_tasks)

    def owns_for_life(self, task: asyncio.Task[Any]) -> bool:
        return task in self.handler._abort_tasks


def engine_as_shown(engine: FakeEngine, scenario: Scenario) -> Any:
    """The engine, or a view of it whose registry is not what SGLang 0.5.21 has."""
    if scenario.registry == "mapping":
        return engine
    manager = engine.tokenizer_manager
    shown = None
    if scenario.registry == "list":
        shown = SimpleNamespace(
            rid_to_state=[],
            abort_request=manager.abort_request,
            generate_request=manager.generate_request,
            server_args=manager.server_args,
            model_config=manager.model_config,
            tokenizer=manager.tokenizer,
        )
    return SimpleNamespace(
        async_generate=engine.async_generate, tokenizer_manager=shown, shutdown=engine.shutdown
    )


class Incumbent:
    """Opens an `IncumbentSubject`; it never gets a response sender."""

    name = "incumbent"
    push = False

    @asynccontextmanager
    async def open(self, run: Run) -> AsyncIterator[tuple[FakeEngine, IncumbentSubject]]:
        """Trio."""
        engine = FakeEngine(run.journal, run.script_for, server_args=server_args_of(run.scenario))
        subject = IncumbentSubject(engine, run.scenario)
        try:
            yield engine, subject
        finally:
            await trio_asyncio.aio_as_trio(engine.stop)()


def server_args_of(scenario: Scenario) -> dict[str, Any]:
    """SGLang's arguments for a scenario."""
    mode = "null"
    if scenario.role.endswith("prefill"):
        mode = "prefill"
    elif scenario.disaggregated:
        mode = "decode"
    return {"disaggregation_mode": mode, **scenario.server_args}
