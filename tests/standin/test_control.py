# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trio_worker.standin.control import Control


class Messages:
    """Stands for SGLang's io_struct: any name is a message type that keeps its fields."""

    def __getattr__(self, name: str) -> Any:
        def make(**fields: Any) -> Any:
            return type(name, (SimpleNamespace,), {})(**fields)

        return make


io = Messages()


class FakeScheduler:
    """Records what control messages do."""

    def __init__(self) -> None:
        self.io = io
        self.weight_version = "v0"
        self.idle = True
        self.calls: list[Any] = []
        self.replies: list[Any] = []
        self.timers: list[Callable[[], None]] = []

    def gauges(self) -> dict[str, Any]:
        return {"running": 3}

    def config(self) -> dict[str, Any]:
        return {"page_size": 1}

    def pause(self, *, retract: bool) -> None:
        self.calls.append(("pause", retract))

    def resume(self) -> None:
        self.calls.append("resume")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def slow_down(self, seconds: float) -> None:
        self.calls.append(("slow_down", seconds))

    def set_weight_version(self, version: str | None) -> None:
        self.calls.append(("version", version))

    def forward(self, message: Any) -> None:
        self.calls.append(("forward", type(message).__name__))

    def reply(self, answer: Any, message: Any) -> None:
        self.replies.append(answer)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self.timers.append(action)

    def freeze_gc(self) -> None:
        self.calls.append("freeze")


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def control(scheduler: FakeScheduler) -> Control:
    return Control(scheduler)


def ask(control: Control, scheduler: FakeScheduler, message: Any) -> Any:
    """Handle a message; its answer, or None if there was none."""
    before = len(scheduler.replies)
    assert control.handle(message)
    answers = scheduler.replies[before:]
    assert len(answers) <= 1
    return answers[0] if answers else None


def flush(timeout: float | None = None) -> Any:
    return io.FlushCacheReqInput(timeout_s=timeout)


def test_unknown_messages_are_not_fatal(control: Control, scheduler: FakeScheduler) -> None:
    assert not control.handle(io.SomethingNewReqInput())
    assert scheduler.replies == []


def test_a_flush_succeeds_only_when_idle(control: Control, scheduler: FakeScheduler) -> None:
    assert ask(control, scheduler, flush()).success
    scheduler.idle = False
    assert not ask(control, scheduler, flush()).success


def test_a_flush_may_wait_for_idleness(control: Control, scheduler: FakeScheduler) -> None:
    scheduler.idle = False
    assert ask(control, scheduler, flush(5.0)) is None
    assert not ask(control, scheduler, flush()).success
    scheduler.timers.pop()()
    assert len(scheduler.replies) == 1
    scheduler.idle = True
    scheduler.timers.pop()()
    assert scheduler.replies[-1].success
    assert scheduler.timers == []
    assert ask(control, scheduler, flush()).success


def test_a_flush_that_waits_too_long_fails(control: Control, scheduler: FakeScheduler) -> None:
    scheduler.idle = False
    ask(control, scheduler, flush(0.05))
    while scheduler.timers:
        scheduler.timers.pop()()
    assert (scheduler.replies[-1].success, scheduler.replies[-1].message) == (
        False,
        "Timed out waiting for idle state.",
    )


@pytest.mark.parametrize(("mode", "retract"), [("in_place", False), ("retract", True)])
def test_pause_and_continue_have_no_answer(
    control: Control, scheduler: FakeScheduler, mode: str, retract: bool
) -> None:
    assert ask(control, scheduler, io.PauseGenerationReqInput(mode=mode)) is None
    assert ask(control, scheduler, io.ContinueGenerationReqInput()) is None
    assert scheduler.calls == [("pause", retract), "resume"]


def test_weights_change_only_within_a_session(control: Control, scheduler: FakeScheduler) -> None:
    update = io.UpdateWeightsFromTensorReqInput(weight_version="v1")
    assert not ask(control, scheduler, update).success
    assert ask(control, scheduler, io.BeginWeightUpdateReqInput()).success
    assert not ask(control, scheduler, io.BeginWeightUpdateReqInput()).success
    assert ask(control, scheduler, update).success
    assert ask(control, scheduler, io.EndWeightUpdateReqInput()).success
    assert not ask(control, scheduler, io.EndWeightUpdateReqInput()).success
    assert scheduler.calls == [("version", "v1")]


def test_adapters_are_remembered(control: Control, scheduler: FakeScheduler) -> None:
    load = io.LoadLoRAAdapterReqInput(lora_name="a", lora_path="/a")
    assert ask(control, scheduler, load).loaded_adapters == {"a": "/a"}
    assert not ask(control, scheduler, load).success
    unload = io.UnloadLoRAAdapterReqInput(lora_name="a")
    assert ask(control, scheduler, unload).loaded_adapters == {}
    assert ask(control, scheduler, load).success


def test_sessions_open_once(control: Control, scheduler: FakeScheduler) -> None:
    opening = io.OpenSessionReqInput(session_id="s")
    assert ask(control, scheduler, opening).success
    assert not ask(control, scheduler, opening).success
    assert control.sessions == {"s"}
    assert ask(control, scheduler, io.CloseSessionReqInput(session_id="s")) is None
    assert control.sessions == set()


def test_state_and_rpc_tell_the_gauges(control: Control, scheduler: FakeScheduler) -> None:
    state = ask(control, scheduler, io.GetInternalStateReq()).internal_state
    assert (state["stand_in"], state["page_size"]) == ({"running": 3}, 1)
    rpc = ask(control, scheduler, io.RpcReqInput(method="anything"))
    assert json.loads(rpc.message) == {"running": 3}


def test_some_messages_go_on_to_the_detokenizer(control: Control, scheduler: FakeScheduler) -> None:
    assert ask(control, scheduler, io.FreezeGCReq()) is None
    assert ask(control, scheduler, io.ConfigureLoggingReq(log_level=None)) is None
    assert scheduler.calls == [
        "freeze",
        ("forward", "FreezeGCReq"),
        ("forward", "ConfigureLoggingReq"),
    ]


def test_a_shutdown_has_no_answer(control: Control, scheduler: FakeScheduler) -> None:
    assert ask(control, scheduler, io.ShutdownReq()) is None
    assert scheduler.calls == ["shutdown"]


@pytest.mark.parametrize(("asked", "seconds"), [(None, 0.0), (-1.0, 0.0), (0.5, 0.5)])
def test_slow_down(
    control: Control, scheduler: FakeScheduler, asked: float | None, seconds: float
) -> None:
    message = io.SlowDownReqInput(forward_sleep_time=asked)
    assert ask(control, scheduler, message) is not None
    assert scheduler.calls == [("slow_down", seconds)]


@pytest.mark.parametrize(
    ("name", "success"),
    [
        ("ClearHiCacheReqInput", True),
        ("ReleaseMemoryOccupationReqInput", None),
        ("ResumeMemoryOccupationReqInput", None),
        ("ProfileReq", True),
        ("ExpertDistributionReq", None),
        ("SetInternalStateReq", None),
        ("PdRoleSwitchReqInput", False),
        ("ScaleElasticEPReqInput", False),
    ],
)
def test_messages_without_effect_are_answered(
    control: Control, scheduler: FakeScheduler, name: str, success: bool | None
) -> None:
    answer = ask(control, scheduler, getattr(io, name)())
    assert answer is not None
    assert getattr(answer, "success", None) is success


def test_messages_without_an_answer_are_known(control: Control, scheduler: FakeScheduler) -> None:
    assert ask(control, scheduler, io.ActiveRanksOutput()) is None
