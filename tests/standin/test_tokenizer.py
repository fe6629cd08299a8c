# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from trio_worker.standin.script import parse_script
from trio_worker.standin.tokenizer import delay_tokenizer


class FakeManager:
    """The methods of SGLang's TokenizerManager that are slowed down."""

    def __init__(self) -> None:
        self.tokenizer = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
        self.done: list[Any] = []

    async def _tokenize_one_request(self, obj: Any) -> str:
        self.done.append("tokenize")
        return "tokenized"

    async def _batch_tokenize_and_process(self, batch_size: int, obj: Any) -> list[str]:
        self.done.append(("batch", batch_size))
        return ["tokenized"] * batch_size

    async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[int]:
        self.done.append("registered")
        try:
            yield 1
            yield 2
        finally:
            self.done.append("closed")


def request(text: str | None = "hi", ids: Any = None, **sampling: Any) -> Any:
    return SimpleNamespace(text=text, input_ids=ids, sampling_params=sampling)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> FakeManager:
    """A manager whose sleeps are noted instead of slept."""
    fake = FakeManager()

    async def sleep(seconds: float) -> None:
        fake.done.append(seconds)

    monkeypatch.setattr("trio_worker.standin.tokenizer.asyncio.sleep", sleep)
    return fake


def run(script: str, manager: FakeManager, work: Any) -> Any:
    async def main() -> Any:
        delay_tokenizer(manager, parse_script(script))
        return await work()

    return asyncio.run(main())


def test_dispatch_is_delayed_before_tokenization(manager: FakeManager) -> None:
    result = run(
        "fault=delay_dispatch:ms=50", manager, lambda: manager._tokenize_one_request(request())
    )
    assert (result, manager.done) == ("tokenized", [0.05, "tokenize"])


def test_batches_are_delayed_once(manager: FakeManager) -> None:
    run(
        "fault=delay_dispatch:ms=50",
        manager,
        lambda: manager._batch_tokenize_and_process(2, request()),
    )
    assert manager.done == [0.05, ("batch", 2)]


def test_without_faults_nothing_is_delayed(manager: FakeManager) -> None:
    run("", manager, lambda: manager._tokenize_one_request(request()))
    assert manager.done == ["tokenize"]


def test_a_request_may_ask_for_its_own_delay(manager: FakeManager) -> None:
    asked = request(custom_params={"stand_in": "delay_dispatch:ms=7"})
    run("", manager, lambda: manager._tokenize_one_request(asked))
    assert manager.done == [0.007, "tokenize"]


def test_the_prompt_may_be_tokens(manager: FakeManager) -> None:
    script = "fault=delay_dispatch:ms=7:prompt=5 6"
    run(script, manager, lambda: manager._tokenize_one_request(request(None, [4, 5, 6])))
    run(script, manager, lambda: manager._tokenize_one_request(request(None, [4, 6])))
    assert manager.done == [0.007, "tokenize", "tokenize"]


def test_nonsense_is_left_to_the_scheduler(manager: FakeManager) -> None:
    asked = request(custom_params={"stand_in": "bang"})
    run("fault=delay_dispatch:ms=7", manager, lambda: manager._tokenize_one_request(asked))
    assert manager.done == ["tokenize"]


def test_registration_is_delayed_before_the_generator_begins(manager: FakeManager) -> None:
    async def work() -> list[int]:
        return [x async for x in manager.generate_request(request())]

    assert run("fault=delay_register:ms=9", manager, work) == [1, 2]
    assert manager.done == [0.009, "registered", "closed"]


def test_a_generator_that_is_left_is_closed_at_once(manager: FakeManager) -> None:
    async def work() -> list[Any]:
        outputs = manager.generate_request(request())
        async for _ in outputs:
            break
        await outputs.aclose()
        return [*manager.done]

    assert run("fault=delay_register:ms=9", manager, work)[-1] == "closed"


def test_one_draw_a_request(manager: FakeManager) -> None:
    """Registration and dispatch see the same faults, and so do copies for parallel samples."""

    async def work() -> None:
        for _ in range(200):
            asked = request()
            async for _ in manager.generate_request(asked):
                pass
            await manager._tokenize_one_request(asked)

    script = "fault=delay_register:ms=1:rate=0.5,fault=delay_dispatch:ms=2:rate=0.5"
    run(script, manager, work)
    delays = [x for x in manager.done if isinstance(x, float)]
    assert 120 < len(delays) < 280
