# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0
"""Answers to control messages: everything that SGLang's scheduler dispatches except requests.

Every message of ``Scheduler.init_request_dispatcher`` (SGLang 0.5.21) has its answer here. Where
the real scheduler's answer depends on state that a worker can see (pause, weight-update session,
LoRA adapters, sessions, flush while busy), the stand-in keeps that state; what would touch a GPU
succeeds at once. Messages are recognised by the name of their type, so an SGLang that lacks one
does not matter.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_OUTSIDE_SESSION = "{} must run between begin_weight_update() and end_weight_update()"


class Scheduler(Protocol):
    """What control messages act upon; the process implements it. Times in seconds."""

    io: Any  # sglang.srt.managers.io_struct
    weight_version: str

    @property
    def idle(self) -> bool: ...
    def gauges(self) -> dict[str, Any]: ...
    def config(self) -> dict[str, Any]: ...
    def pause(self, *, retract: bool) -> None: ...
    def resume(self) -> None: ...
    def shutdown(self) -> None: ...
    def slow_down(self, seconds: float) -> None: ...
    def set_weight_version(self, version: str | None) -> None: ...
    def forward(self, message: Any) -> None: ...
    def reply(self, answer: Any, message: Any) -> None: ...
    def call_later(self, seconds: float, action: Callable[[], None]) -> None: ...
    def freeze_gc(self) -> None: ...


class Control:
    """Handles one control message at a time; handle() says whether it knew the message."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._io = scheduler.io
        self.sessions: set[str] = set()
        self._adapters: dict[str, str] = {}
        self._updating_weights = False
        self._flush_pending = False

    def handle(self, message: Any) -> bool:
        """Act, and send the answer if there is one. False: the message is unknown."""
        name = type(message).__name__
        if name in _IGNORED:
            return True
        if name in _SUCCEED:
            output, fields = _SUCCEED[name]
            answer = getattr(self._io, output)(**fields)
        elif (handler := _HANDLERS.get(name)) is not None:
            answer = handler(self, message)
        else:
            return False
        if answer is not None:
            self._scheduler.reply(answer, message)
        return True

    # Cache and memory

    def _flush_cache(self, message: Any) -> Any:
        """SchedulerFlushWrapper: with a timeout, wait for idleness so long."""
        output = self._io.FlushCacheReqOutput
        if self._flush_pending:
            return output(success=False, message="Another flush_cache is already in progress.")
        timeout = float(message.timeout_s or 0.0)
        if self._scheduler.idle or timeout <= 0:
            return output(success=self._scheduler.idle)
        self._flush_pending = True
        self._poll_flush(message, timeout)
        return None

    def _poll_flush(self, message: Any, left: float, every: float = 0.01) -> None:
        if not self._scheduler.idle and left > 0:
            self._scheduler.call_later(every, lambda: self._poll_flush(message, left - every))
            return
        self._flush_pending = False
        idle = self._scheduler.idle
        text = "" if idle else "Timed out waiting for idle state."
        answer = self._io.FlushCacheReqOutput(success=idle, message=text)
        self._scheduler.reply(answer, message)

    # Generation

    def _pause(self, message: Any) -> None:
        self._scheduler.pause(retract=message.mode == "retract")

    def _continue(self, message: Any) -> None:
        self._scheduler.resume()

    def _slow_down(self, message: Any) -> Any:
        self._scheduler.slow_down(max(0.0, message.forward_sleep_time or 0.0))
        return self._io.SlowDownReqOutput()

    # Weights

    def _begin_update(self, message: Any) -> Any:
        opened, self._updating_weights = not self._updating_weights, True
        text = "Success" if opened else "a weight-update session is already open"
        return self._io.BeginWeightUpdateReqOutput(success=opened, message=text)

    def _end_update(self, message: Any) -> Any:
        closed, self._updating_weights = self._updating_weights, False
        text = "Success" if closed else "no weight-update session is open"
        return self._io.EndWeightUpdateReqOutput(success=closed, message=text)

    def _update_in_session(self, message: Any) -> Any:
        name = type(message).__name__.removesuffix("ReqInput")
        output = getattr(self._io, f"{name}ReqOutput")
        if not self._updating_weights:
            return output(success=False, message=_OUTSIDE_SESSION.format(name))
        self._scheduler.set_weight_version(message.weight_version)
        return output(success=True, message="Success")

    def _update_from_disk(self, message: Any) -> Any:
        self._scheduler.set_weight_version(message.weight_version)
        return self._io.UpdateWeightFromDiskReqOutput(
            success=True, message="Succeeded to update model weights."
        )

    def _update_from_ipc(self, message: Any) -> Any:
        self._scheduler.set_weight_version(message.weight_version)
        return self._io.UpdateWeightsFromIPCReqOutput(
            success=True, message="Succeeded to update model weights."
        )

    def _update_version(self, message: Any) -> Any:
        self._scheduler.set_weight_version(message.new_version)
        return self._io.UpdateWeightVersionReqOutput()

    # LoRA and sessions

    def _load_lora(self, message: Any) -> Any:
        known = message.lora_name in self._adapters
        if not known:
            self._adapters[message.lora_name] = getattr(message, "lora_path", "__tensor__")
        return self._io.LoRAUpdateOutput(
            success=not known,
            error_message=f"{message.lora_name} is already loaded" if known else None,
            loaded_adapters=dict(self._adapters),
        )

    def _unload_lora(self, message: Any) -> Any:
        self._adapters.pop(message.lora_name, None)
        return self._io.LoRAUpdateOutput(success=True, loaded_adapters=dict(self._adapters))

    def _open_session(self, message: Any) -> Any:
        new = message.session_id is not None and message.session_id not in self.sessions
        if new:
            self.sessions.add(message.session_id)
        return self._io.OpenSessionReqOutput(session_id=message.session_id, success=new)

    def _close_session(self, message: Any) -> None:
        self.sessions.discard(message.session_id)

    # State

    def _internal_state(self, message: Any) -> Any:
        gauges = self._scheduler.gauges()
        state = {
            **self._scheduler.config(),
            "last_gen_throughput": 0.0,
            "stand_in": gauges,
        }
        return self._io.GetInternalStateReqOutput(internal_state=state)

    def _rpc(self, message: Any) -> Any:
        """Any method succeeds; the message is the gauges as JSON."""
        return self._io.RpcReqOutput(success=True, message=json.dumps(self._scheduler.gauges()))

    def _shutdown(self, message: Any) -> None:
        self._scheduler.shutdown()

    def _freeze_gc(self, message: Any) -> None:
        self._scheduler.freeze_gc()
        self._scheduler.forward(message)

    def _configure_logging(self, message: Any) -> None:
        if message.log_level is not None:
            logging.getLogger().setLevel(message.log_level.upper())
        self._scheduler.forward(message)


_OK: dict[str, Any] = {"success": True, "message": "Success"}
_REFUSED: dict[str, Any] = {"success": False, "message": "not supported by the stand-in scheduler"}

# Message -> (answer, its fields), for messages that change nothing that anybody could see.
_SUCCEED: dict[str, tuple[str, dict[str, Any]]] = {
    "AddExternalCorpusReqInput": ("AddExternalCorpusReqOutput", _REFUSED),
    "AttachHiCacheStorageReqInput": ("AttachHiCacheStorageReqOutput", _OK),
    "CheckWeightsReqInput": ("CheckWeightsReqOutput", _OK),
    "ClearHiCacheReqInput": ("ClearHiCacheReqOutput", {"success": True}),
    "DestroyWeightsUpdateGroupReqInput": ("DestroyWeightsUpdateGroupReqOutput", _OK),
    "DetachHiCacheStorageReqInput": ("DetachHiCacheStorageReqOutput", _OK),
    "DumperControlReqInput": ("DumperControlReqOutput", {"success": True, "response": []}),
    "ExpertDistributionReq": ("ExpertDistributionReqOutput", {}),
    "GetWeightsByNameReqInput": ("GetWeightsByNameReqOutput", {"parameter": [0.0]}),
    "InitWeightsSendGroupForRemoteInstanceReqInput": (
        "InitWeightsSendGroupForRemoteInstanceReqOutput",
        _OK,
    ),
    "InitWeightsUpdateGroupReqInput": ("InitWeightsUpdateGroupReqOutput", _OK),
    "ListExternalCorporaReqInput": ("ListExternalCorporaReqOutput", _REFUSED),
    "PdRoleSwitchReqInput": ("PdRoleSwitchReqOutput", _REFUSED),
    "ProfileReq": ("ProfileReqOutput", {"success": True, "message": "Succeeded"}),
    "ReleaseMemoryOccupationReqInput": ("ReleaseMemoryOccupationReqOutput", {}),
    "RemoveExternalCorpusReqInput": ("RemoveExternalCorpusReqOutput", _REFUSED),
    "ResumeMemoryOccupationReqInput": ("ResumeMemoryOccupationReqOutput", {}),
    "ScaleElasticEPReqInput": ("ScaleElasticEPReqOutput", _REFUSED),
    "SendWeightsToRemoteInstanceReqInput": ("SendWeightsToRemoteInstanceReqOutput", _OK),
    "SetInternalStateReq": ("SetInternalStateReqOutput", {"updated": True}),
}

_HANDLERS: dict[str, Callable[[Control, Any], Any]] = {
    "BeginWeightUpdateReqInput": Control._begin_update,
    "CloseSessionReqInput": Control._close_session,
    "ConfigureLoggingReq": Control._configure_logging,
    "ContinueGenerationReqInput": Control._continue,
    "EndWeightUpdateReqInput": Control._end_update,
    "FlushCacheReqInput": Control._flush_cache,
    "FreezeGCReq": Control._freeze_gc,
    "GetInternalStateReq": Control._internal_state,
    "LoadLoRAAdapterFromTensorsReqInput": Control._load_lora,
    "LoadLoRAAdapterReqInput": Control._load_lora,
    "OpenSessionReqInput": Control._open_session,
    "PauseGenerationReqInput": Control._pause,
    "RpcReqInput": Control._rpc,
    "ShutdownReq": Control._shutdown,
    "SlowDownReqInput": Control._slow_down,
    "UnloadLoRAAdapterReqInput": Control._unload_lora,
    "UpdateWeightFromDiskReqInput": Control._update_from_disk,
    "UpdateWeightVersionReqInput": Control._update_version,
    "UpdateWeightsFromDistributedReqInput": Control._update_in_session,
    "UpdateWeightsFromIPCReqInput": Control._update_from_ipc,
    "UpdateWeightsFromTensorReqInput": Control._update_in_session,
}

# Known, and without an answer or an effect here.
_IGNORED = frozenset({"ActiveRanksOutput", "BlockReqInput", "ElasticScaleUpdateReq"})
