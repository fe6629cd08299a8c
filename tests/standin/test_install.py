# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
import pickle
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trio_worker.standin.install import install, run_stand_in
from trio_worker.standin.script import parse_script


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's Engine class, or rather the one attribute of it that matters."""
    fake = SimpleNamespace(run_scheduler_process_func=None)
    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    saver = ModuleType("sglang.srt.utils.torch_memory_saver_adapter")
    saver._TorchMemorySaverAdapterReal = type("Saver", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, saver.__name__, saver)
    sys.modules["sglang.srt.utils"].torch_memory_saver_adapter = saver  # type: ignore[attr-defined]
    module = ModuleType("sglang.srt.entrypoints.engine")
    module.Engine = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


def test_the_hook_gets_something_that_spawn_can_pickle(engine: Any) -> None:
    script = parse_script("step_ms=3,fault=die:at=2")
    install(script)
    hook = engine.run_scheduler_process_func.__func__
    copy = pickle.loads(pickle.dumps(hook))
    assert (copy.func, copy.args) == (run_stand_in, (script,))


def test_schedulers_start_without_a_library_of_cuda(engine: Any) -> None:
    install(parse_script(""))
    saver: Any = sys.modules["sglang.srt.utils.torch_memory_saver_adapter"]
    with saver._TorchMemorySaverAdapterReal().configure_subprocess():
        pass


def test_the_parent_never_imports_the_process() -> None:
    """Parsing and installing happen in the worker; what the scheduler needs would slow it down."""
    code = (
        "import sys, trio_worker.standin.install, trio_worker.standin.tokenizer;"
        "heavy = {'torch', 'sglang', 'zmq', 'tokenizers', 'numpy'} & {*sys.modules};"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
