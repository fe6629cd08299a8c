# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler process: SGLang's sockets, one loop, start and end. Synchronous, single-threaded.

Imported only in the scheduler process. Starting it costs what importing SGLang's message types
costs (torch and its compiler front end, transformers, flashinfer: some 20 s of CPU, half of which
is spent unpickling ServerArgs before any code of ours runs); the scheduler's own module, model code
and weights are never imported.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import setproctitle
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.managers import io_struct
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
from sglang.srt.runtime_context import (
    SpawnRanks,
    get_context,
    get_disagg,
    get_model,
    get_observability,
    get_parallel,
    get_schedule,
    get_serving,
    publish,
    spawn_world_rank,
)
from sglang.srt.utils.common import configure_logger, kill_itself_when_parent_died
from sglang.srt.utils.msgspec_utils import msgspec_to_builtins
from sglang.srt.utils.weight_versions import WeightVersionEvent, compute_weight_version_spans
from zmq.constants import NOBLOCK, POLLIN
from zmq.error import Again
from zmq.sugar.poll import Poller

from trio_worker.standin import ranks
from trio_worker.standin.alphabet import find_alphabet, tokenizer_file
from trio_worker.standin.control import Control
from trio_worker.standin.events import EventLog
from trio_worker.standin.generation import Generation, Limits
from trio_worker.standin.intake import Intake, Model
from trio_worker.standin.pace import Pace
from trio_worker.standin.reports import Publish, Reports
from trio_worker.standin.request import FinishReason, Request
from trio_worker.standin.script import FOREVER, Fault, FaultKind, StandInScript
from trio_worker.standin.tokens import default_alphabet

logger = logging.getLogger(__name__)

# Longest sleep of an idle loop: only a bound, every message wakes it.
_IDLE_MS = 1000
_LINGER_MS = 500
# SGLang derives the number from the memory of a GPU if nobody sets it.
_DEFAULT_MAX_RUNNING = 4096

clock = time.perf_counter  # SGLang's time stats are on this clock


class StandInScheduler:
    """One scheduler rank with sockets. Implements control.Scheduler and generation.Outlet."""

    io = io_struct

    def __init__(self, script: StandInScript, server_args: Any, port_args: Any) -> None:
        parallel, mode = get_parallel(), get_disagg().disaggregation_mode
        self.weight_version: str = get_serving().weight_version
        self._script = script
        self._with_metrics = bool(get_observability().enable_metrics)
        self._log = EventLog(script.log)
        self._stop_at: float | None = None
        self._busy_health_checks: list[str | None] = []

        self._channels = SchedulerIpcChannels.create(
            port_args=port_args,
            is_rank_zero=True,
            skip_tokenizer_init=get_serving().skip_tokenizer_init,
            metrics_enabled=self._with_metrics,
            enable_scripted_runtime=False,
        )
        self._from_tokenizer = self._channels.recv_from_tokenizer
        self._from_rpc = self._channels.recv_from_rpc

        model = _describe_model(server_args)
        self.intake = Intake(
            script,
            model,
            prefill=mode == "prefill",
            stream_interval=get_serving().stream_interval,
        )
        schedule = get_schedule()
        self.generation = Generation(
            Limits(
                max_running=script.max_running
                or schedule.max_running_requests
                or _DEFAULT_MAX_RUNNING,
                queue_limit=schedule.max_queued_requests
                if script.queue_limit is None
                else script.queue_limit,
                prefill_ms=script.prefill_ms,
                tokens_per_step=script.tokens_per_step,
            ),
            model.alphabet,
            self,
            dp_rank=parallel.dp_rank,
            # SchedulerOutputStreamer: a decode server does not send the prompt's logprobs.
            with_prompt_logprobs=mode != "decode",
            version_spans=self._version_spans,
        )
        self._pace = Pace(script.step_ms * script.burst / 1000)
        self._reports = Reports(
            self.generation,
            capacity=script.capacity,
            dp_rank=parallel.dp_rank or 0,
            metrics=_metrics_publisher(self._channels.send_metrics_from_scheduler),
            snapshot=_snapshot_publisher(port_args),
        )
        self._control = Control(self)
        self._poller = Poller()
        self._poller.register(self._from_tokenizer, POLLIN)
        self._poller.register(self._from_rpc, POLLIN)

    # The loop

    def serve(self) -> None:
        """Run until ShutdownReq."""
        signal.signal(signal.SIGUSR1, lambda *_: self._log.note("gauges", **self.gauges()))
        self._log.note("ready", dp_rank=get_parallel().dp_rank)
        while True:
            now = clock()
            if self._stop_at is not None and now >= self._stop_at:
                break
            self.generation.advance(now)
            if self.generation.steps_wanted:
                self._pace.start(now)
            else:
                self._pace.rest()
            self._receive(self._time_to_wait(now))
            now = clock()
            if self.generation.steps_wanted and self._pace.wait(now) == 0.0:
                self._tick(now)

    def close(self) -> None:
        """Flush what is still in the sockets, for at most _LINGER_MS."""
        self._log.note("exit", reason="shutdown", **self.gauges())
        self._from_tokenizer.context.destroy(linger=_LINGER_MS)

    def _time_to_wait(self, now: float) -> float:
        waits = [self._pace.wait(now)]
        for due in (self.generation.next_timer(), self._stop_at):
            waits.append(None if due is None else max(0.0, due - now))
        return min((wait for wait in waits if wait is not None), default=_IDLE_MS / 1000)

    def _receive(self, timeout: float) -> None:
        """Handle all messages that are there; wait at most timeout seconds for the first."""
        # zmq waits in whole milliseconds; the rest is slept so that steps keep their rhythm.
        whole_ms = int(min(timeout * 1000, _IDLE_MS))
        if not self._poller.poll(whole_ms):
            rest = timeout - whole_ms / 1000
            if 0 < rest < 0.001:
                time.sleep(rest)
        for sock in (self._from_tokenizer, self._from_rpc):
            while True:
                try:
                    message = io_struct.sock_recv(sock, NOBLOCK)
                except Again:
                    break
                self._handle(message)

    def _handle(self, message: Any) -> None:
        name = type(message).__name__
        if name.startswith("Batch") and hasattr(message, "batch"):
            for one in message.batch:
                self._submit(one)
        elif isinstance(
            message, (io_struct.TokenizedGenerateReqInput, io_struct.TokenizedEmbeddingReqInput)
        ):
            self._submit(message)
        elif isinstance(message, io_struct.AbortReq):
            self.generation.abort(
                clock(),
                rid=message.rid,
                abort_all=message.abort_all,
                message=message.abort_message,
                reason=message.finished_reason,
            )
        elif self._control.handle(message):
            self._log.note("control", name=name)
        else:
            logger.warning("The stand-in scheduler does not know %s: ignored", name)
            self._log.note("unknown", name=name)

    def _submit(self, message: Any) -> None:
        if message.rid.startswith("HEALTH_CHECK") and not self.idle:
            # Like SGLang: while it is busy, the next step is proof enough.
            self._busy_health_checks.append(message.http_worker_ipc)
            return
        message.unwrap_pickle_fields()
        stats = SchedulerReqTimeStats.new_from_obj(message.time_stats)
        stats.wait_queue_entry_time = now = clock()
        stats.enable_metrics = self._with_metrics
        if isinstance(message, io_struct.TokenizedEmbeddingReqInput):
            request = self.intake.embed(message, stats)
        else:
            request = self.intake.generate(message, stats, self._refusal(message))
        self.generation.submit(request, now)

    def _refusal(self, message: Any) -> str | None:
        session = message.session_params.id if message.session_params is not None else None
        if session is None or session in self._control.sessions:
            return None
        return f"Invalid request: session id {session} does not exist"

    def _tick(self, now: float) -> None:
        for _ in range(self._script.burst):
            self._step(now)
        for _ in range(self.generation.take_burst() - 1):
            self._step(now)
        for ipc in self._busy_health_checks:
            self._send_to_tokenizer(io_struct.HealthCheckOutput(http_worker_ipc=ipc))
        self._busy_health_checks.clear()
        self._pace.ticked(clock())
        self._reports.after_tick(now)

    def _step(self, now: float) -> None:
        if not self.generation.steps_wanted:
            return
        output = self.generation.step(now)
        if output.tokens is not None:
            self._send_output(io_struct.BatchTokenIDOutput, output.tokens)
        if output.embeddings is not None:
            self._send_output(io_struct.BatchEmbeddingOutput, output.embeddings)

    def _send_output(self, kind: Any, columns: dict[str, Any]) -> None:
        columns["time_stats"] = io_struct.wrap_as_pickle(columns["time_stats"])
        io_struct.sock_send(self._channels.send_to_detokenizer.socket, kind(**columns))

    def _send_to_tokenizer(self, message: Any, about: Any = None) -> None:
        self._channels.send_to_tokenizer.send_output(message, about)

    # generation.Outlet

    def echo(self, request: Request, reason: FinishReason | None) -> None:
        abort = io_struct.AbortReq(
            rid=request.rid, finished_reason=reason, weight_versions=self._version_spans(request)
        )
        self._send_to_tokenizer(abort, request)

    def admitted(self, request: Request) -> None:
        stats = request.time_stats
        stats.forward_entry_time = now = clock()
        stats.queue_duration_s = now - stats.wait_queue_entry_time

    def started(self, request: Request) -> None:
        request.time_stats.prefill_finished_time = clock()
        self._log.note("start", rid=request.rid)

    def strike(self, fault: Fault) -> None:
        if fault.kind is FaultKind.HANG:
            _hang(fault.ms)
            return
        self._log.note("exit", reason=fault.how, **self.gauges())
        if fault.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(fault.code)

    def note(self, event: str, **fields: Any) -> None:
        self._log.note(event, **fields)

    # control.Scheduler

    @property
    def idle(self) -> bool:
        return self.generation.idle

    def gauges(self) -> dict[str, Any]:
        return {**self.generation.gauges(), "skipped": self._pace.skipped}

    def config(self) -> dict[str, Any]:
        """The part of Scheduler.get_internal_state that a worker reads."""
        parallel = get_parallel()
        state = {
            **get_context().resolved_server_args_dict(),
            "world_size": parallel.tp_size * parallel.pp_size,
            "memory_usage": {
                "weight": 0.0,
                "kvcache": 0.0,
                "token_capacity": self._script.capacity,
                "graph": {},
            },
            "startup_time": {},
            "effective_max_running_requests_per_dp": self.generation.limits.max_running,
            "disaggregation_mode": get_disagg().disaggregation_mode,
        }
        plain: dict[str, Any] = msgspec_to_builtins(state)
        return plain

    def pause(self, *, retract: bool) -> None:
        self.generation.pause(retract=retract)

    def resume(self) -> None:
        self.generation.resume(clock())

    def shutdown(self) -> None:
        if self._script.shutdown_ms != FOREVER:
            self._stop_at = clock() + self._script.shutdown_ms / 1000

    def slow_down(self, seconds: float) -> None:
        self._pace.interval_s = self._script.step_ms * self._script.burst / 1000 + seconds

    def set_weight_version(self, version: str | None) -> None:
        """Scheduler.record_weight_version_change: live requests keep what they had until now."""
        if version is None or version == self.weight_version:
            return
        for request in [*self.generation.running.values(), *self.generation.waiting.values()]:
            if tokens := self.generation.tokens_of(request):
                request.weight_events.append(WeightVersionEvent(self.weight_version, tokens))
        self.weight_version = version

    def forward(self, message: Any) -> None:
        self._channels.send_to_detokenizer.send_output(message, message)

    def reply(self, answer: Any, message: Any) -> None:
        if isinstance(answer, io_struct.RpcReqOutput):
            io_struct.sock_send(self._from_rpc, answer)
        else:
            self._send_to_tokenizer(answer, message)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self.generation.call_at(clock() + seconds, lambda _: action())

    def freeze_gc(self) -> None:
        gc.freeze()

    def _version_spans(self, request: Request) -> Any:
        return compute_weight_version_spans(
            request.weight_events,
            current_version=self.weight_version,
            num_output_tokens=request.produced,
        )


def _describe_model(server_args: Any) -> Model:
    config = ModelConfig.from_server_args(server_args)
    eos = config.hf_eos_token_id
    path, revision = get_serving().tokenizer_path, get_model().revision
    return Model(
        context_length=config.context_len,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        alphabet=find_alphabet(path, revision) or default_alphabet(config.vocab_size),
        eos_id=min(eos) if eos else None,
        tokenizer_file=tokenizer_file(path, revision),
    )


def _metrics_publisher(socket: Any) -> Publish | None:
    """SGLang sends KvMetrics only with metrics on and a KV event configuration."""
    if socket is None or not get_observability().kv_events_config:
        return None
    from sglang.srt.managers.scheduler_components.kv_events_publisher import KvMetrics

    return lambda fields: io_struct.sock_send(socket, KvMetrics(**fields))


def _snapshot_publisher(port_args: Any) -> Publish | None:
    """As in SGLang, a scheduler without load snapshots serves all the same."""
    from sglang.srt.managers.load_snapshot import LoadSnapshot, create_load_snapshot_writer

    parallel = get_parallel()
    try:
        writer = create_load_snapshot_writer(port_args, parallel.dp_size, parallel.dp_rank or 0)
    except OSError as error:
        logger.warning("load snapshot writer init failed: %s", error)
        return None
    return lambda fields: writer.write(LoadSnapshot(timestamp=time.time(), **fields))


def _hang(ms: float) -> None:
    if ms != FOREVER:
        time.sleep(ms / 1000)
        return
    while True:
        time.sleep(3600)


def _share_metrics_address(server_args: Any, port_args: Any) -> None:
    """What Dynamo's own scheduler wrapper does for pure data parallelism (dynamo.sglang)."""
    from dynamo.sglang._compat import resolved_server_args
    from dynamo.sglang.nixl_telemetry import scheduler_metrics_ipc_name

    resolved = resolved_server_args(server_args)
    port_args.metrics_ipc_name = scheduler_metrics_ipc_name(resolved, port_args)


def _load(script: StandInScript) -> None:
    """What loading a model takes, or how it fails."""
    if script.load_ms:
        _hang(script.load_ms)
    if script.load == "exit":
        os._exit(1)
    if script.load == "raise":
        raise RuntimeError("scripted failure of the stand-in scheduler's start")


def _leave(status: int) -> NoReturn:
    """Skip the interpreter's teardown: seconds of it, with SGLang loaded, and nothing to save."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(
    script: StandInScript,
    server_args: Any,
    port_args: Any,
    gpu_id: int,
    tp_rank: int,
    pp_rank: int,
    dp_rank: int | None,
    pipe_writer: Any,
) -> NoReturn:
    """The life of one scheduler process; never returns.

    Failures are told as SGLang tells them: a log line, and SIGQUIT to the parent.
    """
    started = clock()
    parent = os.getppid()
    if dp_rank is None and "SGLANG_DP_RANK" in os.environ:
        dp_rank = int(os.environ["SGLANG_DP_RANK"])
    world_rank = spawn_world_rank(server_args, tp_rank=tp_rank, pp_rank=pp_rank)
    publish(
        server_args,
        role="scheduler",
        ranks=SpawnRanks(world_rank=world_rank, dp_rank=dp_rank, gpu_id=gpu_id),
    )
    kill_itself_when_parent_died()
    faulthandler.enable()
    setproctitle.setproctitle("sglang::scheduler_stand_in")
    configure_logger(server_args, prefix="" if dp_rank is None else f" DP{dp_rank}")
    try:
        parallel = get_parallel()
        point = ranks.meeting_point(
            str(parallel.dist_init_addr or port_args.nccl_port), parallel.dp_rank
        )
        ready = {
            "status": "ready",
            "max_total_num_tokens": script.capacity,
            "startup_time": {"scheduler_e2e": clock() - started},
        }
        if parallel.pp_rank or parallel.attn_tp_rank or parallel.attn_cp_rank:
            _load(script)
            pipe_writer.send({**ready, "max_req_input_len": 0})
            ranks.follow(point)
            _leave(0)
        if dp_rank is not None:
            _share_metrics_address(server_args, port_args)
        scheduler = StandInScheduler(script, server_args, port_args)
        _load(script)
        group = ranks.lead(point)
        pipe_writer.send({**ready, "max_req_input_len": scheduler.intake.max_prompt_length})
        # Nobody here makes cycles; what is loaded must not be walked at every few thousand tokens.
        gc.freeze()
        scheduler.serve()
        scheduler.close()
        group.close()
    except Exception:
        logger.exception("The stand-in scheduler hit an exception")
        if os.getppid() == parent:
            os.kill(parent, signal.SIGQUIT)
        _leave(1)
    _leave(0)
