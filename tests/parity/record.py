# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Start every role of both workers, from the command line on, and write down what it asks for.

Real are both workers' start-up, the incumbent's parser, its handlers and publishers. Recorded, in
place of Rust's runtime: endpoints, routes, clients, metrics; in place of SGLang's engine: nothing
but its interface.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from tests.parity.roles import RoleCase, cases, write_model

LIMIT_S = 120.0
"""Seconds for one start."""

T = TypeVar("T")

Told = dict[tuple[str, str], str]
"""``(kind, name)`` -> what is told about it."""


class Record:
    """What one start of one worker has asked for."""

    def __init__(self) -> None:
        self.entries: Told = {}
        self.scrapes: list[Callable[[], str]] = []
        self.server_args: Any = None
        self.futures: list[asyncio.Future[Any]] = []

    def add(self, kind: str, name: str, what: Any = "yes") -> None:
        """Neither flavour. One thing; asked for again, the last counts."""
        self.entries[kind, name] = str(what)

    def has(self, kind_or_name: str) -> bool:
        """Whether there is such a thing."""
        return any(kind_or_name in key for key in self.entries)

    def collect_metrics(self) -> None:
        """Names that ``/metrics`` shows."""
        for scrape in self.scrapes:
            for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", scrape(), re.MULTILINE):
                self.add("metric", name, kind)


now = Record()
"""What is being recorded."""


# ---- in place of the runtime ----


class Endpoint:
    def __init__(self, path: str) -> None:
        self.path = path
        self.metrics = self

    def serve_endpoint(
        self,
        handler: Callable[..., Any],
        graceful_shutdown: bool = True,
        metrics_labels: list[tuple[str, str]] | None = None,
        health_check_payload: dict[str, Any] | None = None,
    ) -> asyncio.Future[None]:
        graceful = "" if graceful_shutdown else "not graceful; "
        labels = ", ".join(f"{name}={value}" for name, value in metrics_labels or ())
        now.add("endpoint", self.path, f"{graceful}labels: {labels or 'none'}")
        if health_check_payload is not None:
            now.add("canary", self.path, health_check_payload)
        future = asyncio.get_running_loop().create_future()
        now.futures.append(future)
        return future

    async def client(self) -> Client:
        now.add("client", self.path)
        return Client(self.path)

    async def first_token_source(self, worker_type: Any) -> object:
        now.add("first-token source", self.path, worker_type)
        return types.SimpleNamespace(bind=lambda *_: None)

    def connection_id(self) -> int:
        return 1

    async def register_endpoint_instance(self) -> None: ...

    async def unregister_endpoint_instance(self) -> None: ...

    def register_prometheus_expfmt_callback(self, callback: Callable[[], str]) -> None:
        now.scrapes.append(callback)

    def register_prometheus_typed_callback(self, callback: Callable[[], Any]) -> None: ...


class Client:
    def __init__(self, path: str) -> None:
        self._path = path

    async def wait_for_instances(self) -> list[int]:
        now.add("waits for", self._path)
        return [1]

    async def wait_for_instance_by_runtime_data(self, key: str, *_: Any, **__: Any) -> int:
        now.add("waits for", self._path, key)
        return 1


class Runtime:
    def endpoint(self, path: str) -> Endpoint:
        return Endpoint(path)

    def register_engine_route(self, path: str, _handler: Callable[..., Any]) -> None:
        now.add("engine route", path)

    def set_health_status(self, healthy: bool) -> None:
        if healthy:
            now.add("health status", "ready")

    def shutdown(self) -> None:
        for future in now.futures:
            if not future.done():
                future.set_result(None)


def create_runtime(**planes: Any) -> tuple[Runtime, Any]:
    for name, value in planes.items():
        now.add("runtime", name, value)
    return Runtime(), asyncio.get_running_loop()


class Publisher:
    """Any of Rust's publishers."""

    kind = ""

    def __init__(self, *_: Any, **what: Any) -> None:
        told = {name: value for name, value in what.items() if name != "endpoint"}
        if self.kind:
            now.add(self.kind, f"dp_rank {told.pop('dp_rank', 0)}", told or "yes")

    async def create_endpoint(self, endpoint: Any) -> None:
        now.add("publisher", type(self).__name__, endpoint.path)

    def publish(self, *_: Any, **__: Any) -> None: ...

    def shutdown(self) -> None: ...


class WorkerMetricsPublisher(Publisher): ...


class MultimodalEmbeddingCachePublisher(Publisher): ...


class KvEventPublisher(Publisher):
    kind = "KV events"


class FpmEventRelay(Publisher):
    def __init__(self, endpoint: Any, zmq_endpoint: str) -> None:
        now.add("forward-pass metrics", f"relay {zmq_endpoint.rpartition('.')[2]}", endpoint.path)


# ---- in place of functions ----


async def register(
    engine: Any, endpoint: Any, server_args: Any, dynamo_args: Any = None, **what: Any
) -> None:
    what.pop("readiness_gate", None)
    if not what.get("serves_lora_load", True):
        del what["serves_lora_load"]  # the default
    told = ", ".join(f"{name}={value}" for name, value in sorted(what.items()))
    now.add("registration", endpoint.path, told or "yes")


async def warm_up(_engine: Any, port: int) -> None:
    now.add("warm-up", "prefill")


def popen(original: Callable[..., Any], command: Any, **options: Any) -> Any:
    """A gateway's child is a process that sleeps."""
    if not isinstance(command, list) or command[1:2] != ["-m"]:
        return original(command, **options)
    told = {
        name: "<number>" if name.endswith(("PID", "LOAD_TIME_S")) else value
        for name, value in options["env"].items()
        if name.startswith("DYN_SGLANG_GATEWAY")
    }
    child = f"child {told['DYN_SGLANG_GATEWAY_CHILD_INDEX']}"
    now.add("child process", f"{child}: program", command[2])
    now.add("child process", child, dict(sorted(told.items())))
    return original(["sleep", "600"])


# ---- in place of SGLang ----


def _engine_classes(model: Path) -> tuple[type, type]:
    from sglang.srt.entrypoints import engine as upstream
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from transformers import AutoTokenizer

    class Manager(TokenizerManager):
        """SGLang's methods, none of its parts."""

        def __init__(self, server_args: Any, scheduler: Any) -> None:
            self.server_args = server_args
            self.scheduler = scheduler
            self.tokenizer = AutoTokenizer.from_pretrained(model)
            self.model_config = types.SimpleNamespace(model_path=str(model), vocab_size=512)
            self.is_generation = False  # nothing to warm up before a snapshot
            self.is_pause = False
            self.asyncio_tasks = set()
            self.rid_to_state = {}

        def auto_create_handle_loop(self) -> None: ...

        def _dispatch_to_scheduler(self, message: Any) -> None:
            self.scheduler.kill()

    def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def call(*_: Any, **__: Any) -> None:
            now.add("engine call", method.__name__)

        call.__annotations__ = get_type_hints(
            method, localns={"TokenizerManager": TokenizerManager}
        )
        return call

    for name in (
        *("pause_generation", "continue_generation"),
        *("release_memory_occupation", "resume_memory_occupation"),
    ):
        setattr(Manager, name, recorded(getattr(TokenizerManager, name)))

    class Engine(upstream.Engine):
        """SGLang's interface."""

        def __init__(self, server_args: Any) -> None:
            now.add("engine", type(self).__name__)
            now.server_args = self.server_args = server_args
            # Those of a node that does not lead have left already.
            self.tokenizer_manager = None
            if not server_args.node_rank:
                scheduler = subprocess.Popen(["sleep", "600"])
                self.tokenizer_manager = Manager(server_args, scheduler)
            scratch = tempfile.mkdtemp(dir=model.parent)
            self.port_args = types.SimpleNamespace(metrics_ipc_name=f"ipc://{scratch}/metrics")
            self._multi_tokenizer_shm = object()
            if server_args.enable_metrics:
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = scratch

        @classmethod
        def attach_tokenizer_worker(cls, _pid: int) -> Any:
            return cls(now.server_args)

        def get_all_child_pids(self) -> list[int]:
            manager = self.tokenizer_manager
            return [] if manager is None else [manager.scheduler.pid]

        def shutdown(self) -> None:
            if self.tokenizer_manager is not None:
                self.tokenizer_manager.scheduler.kill()

    class DiffGenerator:
        local_scheduler_process = ()

        @classmethod
        def from_pretrained(cls, **arguments: Any) -> DiffGenerator:
            for name, value in arguments.items():
                now.add("engine", f"DiffGenerator {name}", value)
            return cls()

        def shutdown(self) -> None: ...

    class MMEncoder:
        def __init__(self, server_args: Any, **_: Any) -> None:
            now.add("engine", "MMEncoder")
            self.server_args = server_args
            self.model_config = types.SimpleNamespace(vocab_size=512)

    generator = types.ModuleType("sglang.multimodal_gen")
    generator.DiffGenerator = DiffGenerator  # type: ignore[attr-defined]
    launch_server = types.ModuleType("sglang.multimodal_gen.runtime.launch_server")
    launch_server.bootstrap_scheduler_process = print  # type: ignore[attr-defined]
    runtime = types.ModuleType("sglang.multimodal_gen.runtime")
    runtime.launch_server = launch_server  # type: ignore[attr-defined]
    for module in (generator, runtime, launch_server):
        sys.modules[module.__name__] = module
    return Engine, MMEncoder


def replace(original: Any, substitute: Any) -> None:
    """Wherever a module has it by now; those that come later take it from there."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in ("dynamo", "trio_worker", "compat"):
            for name in [name for name, value in vars(module).items() if value is original]:
                setattr(module, name, substitute)


def prepare(model: Path) -> None:
    """Before either worker runs: put the recorders in place."""
    import dynamo.llm
    import dynamo.sglang._compat
    import dynamo.sglang.gateway
    import dynamo.sglang.main
    import sglang as sgl
    from dynamo.common.utils import prometheus
    from dynamo.common.utils import runtime as utils
    from dynamo.sglang import _disagg
    from dynamo.sglang import register as registration

    from compat import reachable

    sgl.Engine, encoder = _engine_classes(model)
    substitutes: list[tuple[Any, Any]] = [
        (utils.create_runtime, create_runtime),
        (registration.register_model_with_readiness_gate, register),
        (registration.register_image_diffusion_model, register),
        (registration.register_video_generation_model, register),
        (_disagg.warmup_prefill_engine, warm_up),
        (dynamo.sglang._compat.get_mm_encoder_class, lambda: encoder),
        (dynamo.sglang._compat.publish_server_args, lambda *_, **__: None),
        (dynamo.sglang.gateway.start_parent_watchdog, lambda _pid: None),
        (reachable.check_engine_ports, lambda _server_args: None),
    ]
    for publisher in (
        *(WorkerMetricsPublisher, MultimodalEmbeddingCachePublisher),
        *(KvEventPublisher, FpmEventRelay),
    ):
        substitutes.append((getattr(dynamo.llm, publisher.__name__), publisher))
    show = prometheus.register_engine_metrics_callback

    def showing(endpoint: Any, registry: Any, *args: Any, **options: Any) -> None:
        for prefix in options.get("metric_prefix_filters") or ():
            now.add("metrics shown", f"{prefix}*")
        show(endpoint, registry, *args, **options)

    for original, substitute in [*substitutes, (show, showing)]:
        replace(original, substitute)
    subprocess.Popen = functools.partial(popen, subprocess.Popen)  # type: ignore
    resource_tracker.unregister = lambda *_: None


# ---- both workers ----


@contextmanager
def recording(case: RoleCase, arguments: list[str]) -> Iterator[Record]:
    """The process as `case` starts it; what it changed in the environment is recorded."""
    parent = str(os.getppid())
    os.environ.update({name: value.format(parent=parent) for name, value in case.env.items()})
    started = dict(os.environ)
    sys.argv = ["worker", *arguments]
    yield now
    for name, value in os.environ.items():
        if started.get(name) != value and name != "PROMETHEUS_MULTIPROC_DIR":
            now.add("environment set", name, value)


def start_incumbent(case: RoleCase, arguments: list[str]) -> None:
    """The incumbent's ``worker()``, until it serves."""
    from dynamo.sglang import main
    from dynamo.sglang.args import parse_args

    async def run() -> None:
        if case.key == "R14":
            now.server_args = (await parse_args(arguments)).server_args
        worker = asyncio.ensure_future(main.worker(arguments))
        async with asyncio.timeout(LIMIT_S):
            while not now.has(case.ready) and not worker.done():
                await asyncio.sleep(0.02)
        if worker.done():
            worker.result()
        await asyncio.sleep(0.1)
        now.collect_metrics()
        worker.cancel()
        await asyncio.wait([worker])

    asyncio.run(run())


class Signals:
    """Stop requests, from here."""

    first_signal = first_signal_at = None
    notify: Callable[[int], None] | None = None

    def doing(self, what: str) -> None:
        """Nobody looks."""

    def attach(self, notify: Callable[[int], None], **_: Any) -> None:
        self.notify = notify

    def arm_last_resort(self, *_: Any, **__: Any) -> None: ...


def start_ours(case: RoleCase, arguments: list[str]) -> None:
    """Our worker, until it serves; then it is stopped."""
    import trio

    from trio_worker.cli import role_of, run_parser, split_args
    from trio_worker.roles.registry import implementation_of
    from trio_worker.worker import main

    async def run(options: Any, config: Any, role: Any) -> None:
        signals = Signals()
        ended = trio.Event()
        status: int | None = None

        async def worker() -> None:
            nonlocal status
            status = await main(signals, options, config, role)  # type: ignore[arg-type]
            ended.set()

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker)
                while not now.has(case.ready) and not ended.is_set():
                    await trio.sleep(0.02)
                await trio.sleep(0.1)
                now.collect_metrics()
                assert signals.notify is not None
                signals.notify(1)
        if not now.has(case.ready):
            raise RuntimeError(f"{case.key}: our worker ended with {status!r}")

    # Its collection before anybody is served takes seconds in a process as large as this.
    options, remaining = split_args(["--gc-policy", "off", *arguments])
    config = run_parser(remaining)
    now.server_args = config.server_args
    role = implementation_of(role_of(config))
    role.prepare(config)
    trio.run(run, options, config, role)


def start_standby(worker: str) -> None:
    """Either worker, which is to become another process before it does anything else."""

    def execute(_file: str, command: list[str]) -> None:
        now.add("exec", " ".join(command))
        now.add("restore context", "written", Path(files, "restore-context.json").exists())
        raise _BecameAnother

    os.execvp = execute  # type: ignore[assignment]
    files = os.environ["DYN_SNAPSHOT_CONTROL_DIR"]
    program = "dynamo.sglang" if worker == "incumbent" else "trio_worker"
    with suppress(_BecameAnother):
        runpy.run_module(f"{program}.__main__", run_name="__main__")


class _BecameAnother(BaseException):
    """``exec`` does not return."""


def start(worker: str, case: RoleCase, model: Path) -> Told:
    """One worker in one role. Once in a process."""
    arguments = case.arguments(model)
    with recording(case, arguments) as record:
        if case.key == "R16":
            start_standby(worker)
        elif worker == "incumbent":
            start_incumbent(case, arguments)
        else:
            start_ours(case, arguments)
    return record.entries


def record_roles() -> dict[str, dict[str, Told]]:
    """Role -> worker -> what it asked for. Each start has a process of its own."""
    found: dict[str, dict[str, Told]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = write_model(folder / "model")
        prepare(model)
        for case in cases(folder):
            for worker in ("incumbent", "ours"):
                entries = in_child(functools.partial(start, worker, case, model))
                told = {key: what.replace(scratch, "<folder>") for key, what in entries.items()}
                found.setdefault(case.key, {})[worker] = told
    return found


def in_child(call: Callable[[], T]) -> T:
    """What `call` returns in a fork of this process, which has paid the imports."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(call(), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("a worker did not come up: see above")
    result: T = pickle.loads(told)
    return result
