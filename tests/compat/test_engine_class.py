# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What SGLang's engine class is taught before an engine is built."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import tests.fakes.heavy  # noqa: F401 (pays SGLang's import before per-test time-outs start)
from compat.engine import prepare_engine_class
from compat.processes import Guarded
from compat.tap import TapMixin

STOPS = {signal.SIGTERM, signal.SIGINT}


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's module, as it was again afterwards."""
    from sglang.srt.entrypoints import engine as upstream
    from sglang.srt.server_args import ServerArgs

    for owner, names in (
        (
            upstream.Engine,
            (
                "run_scheduler_process_func",
                "run_detokenizer_process_func",
                "init_tokenizer_manager_func",
                "_launch_weight_cache_daemons",
            ),
        ),
        (
            upstream,
            ("run_data_parallel_controller_process", "run_multi_detokenizer_router_process"),
        ),
        (ServerArgs, ("get_tokenizer_worker_class",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, owner.__dict__[name])
    return upstream


def prepare(tap: bool = True) -> None:
    prepare_engine_class(merge=lambda outputs, _keys: outputs[0], merge_at=64, tap=tap)


def test_no_kind_of_child_outlives_its_parent(upstream: Any) -> None:
    prepare()
    for target in (
        upstream.Engine.run_scheduler_process_func,
        upstream.Engine.run_detokenizer_process_func,
        upstream.run_data_parallel_controller_process,
        upstream.run_multi_detokenizer_router_process,
    ):
        assert isinstance(target, Guarded)


def test_weight_cache_daemons_hear_sigterm(upstream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []

    def launch(_class: type, server_args: str) -> list[str]:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, set()))
        return [server_args]

    monkeypatch.setattr(upstream.Engine, "_launch_weight_cache_daemons", classmethod(launch))
    prepare()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        assert upstream.Engine._launch_weight_cache_daemons("args") == ["args"]
        assert not masks[0] & STOPS
        assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) & STOPS == STOPS
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_without_the_tap_managers_stay_sglangs(upstream: Any) -> None:
    init = upstream.Engine.init_tokenizer_manager_func
    prepare(tap=False)
    assert upstream.Engine.init_tokenizer_manager_func is init


def test_a_childs_tokenizer_worker_has_the_tap(upstream: Any) -> None:
    from sglang.srt.managers.multi_tokenizer_mixin import TokenizerWorker
    from sglang.srt.server_args import ServerArgs

    prepare()
    worker_class = ServerArgs.get_tokenizer_worker_class(object())
    assert issubclass(worker_class, TapMixin)
    assert issubclass(worker_class, TokenizerWorker)


def test_the_short_way_to_the_weight_version_sees_every_change(upstream: Any) -> None:
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    prepare()
    worker_class = ServerArgs.get_tokenizer_worker_class(object())
    assert worker_class.tap_weight_version is not None
    manager = worker_class.__new__(worker_class)  # it needs an engine to be made
    context = get_context()
    with context.override_server_args():
        for version in ("default", "v2"):
            if version != "default":
                context.override("a test", weight_version=version)
            assert manager.config_value("weight_version") == version
            assert context.config_leaf("weight_version") == version
