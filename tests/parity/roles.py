# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The roles, each by the command line and the environment that select it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers

from tests.standin.tiny_model import write_tiny_model

KV_EVENTS = json.dumps({"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:5557"})

_EVERY = (
    *("--served-model-name", "model", "--namespace", "parity", "--discovery-backend", "mem"),
    *("--embedding-transfer-mode", "local", "--device", "cpu", "--attention-backend"),
    *("torch_native", "--sampling-backend", "pytorch", "--page-size", "16"),
    *("--disaggregation-bootstrap-port", "8998"),
)
_LLM = ("--kv-events-config", KV_EVENTS, "--enable-metrics", "--fpm-trace")
_GATEWAY = ("--kv-events-config", KV_EVENTS, "--enable-metrics", "--gateway-workers", "2")
_SIDE = (
    *("--chat-template", "qwen2-vl", "--multimodal-embedding-cache-capacity-gb", "0.01"),
    "--multimodal-embedding-cache-publisher",
)
_SECOND_NODE = (
    *("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "127.0.0.1:5000"),
    *("--tp", "2", "--dp", "2", "--enable-dp-attention"),
)
_BEHIND_ENCODER = ("--enable-multimodal", "--dedicated-mm-encoder")
_ENCODE = ("--enable-multimodal", "--disaggregation-mode", "encode", *_SIDE)
_PREFILL = ("--disaggregation-mode", "prefill")
_DECODE = ("--disaggregation-mode", "decode")


@dataclass(frozen=True)
class RoleCase:
    """One way to run a worker."""

    key: str
    title: str
    flags: tuple[str, ...]
    ready: str = "registration"
    """The last thing that is recorded before it serves."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def selector(self) -> str:
        """What selects it, to be shown: flags and variables, without those that only feed it."""
        feeding = {*_LLM, *_SIDE}
        flags = [flag for flag in self.flags if flag not in feeding]
        return " ".join(f"`{one}`" for one in (" ".join(flags), *self.env) if one)

    def arguments(self, model: Path) -> list[str]:
        """The command line."""
        return ["--model-path", str(model), *_EVERY, *self.flags]


def cases(folder: Path) -> list[RoleCase]:
    """All roles; R16 has left before there are any arguments."""
    restored = folder / "snapshot"
    restored.mkdir(exist_ok=True)
    (restored / "restore-complete").touch()
    (restored / "restore-context.json").write_text('{"env": {}}')
    child = {
        "DYN_SGLANG_GATEWAY_PARENT_PID": "{parent}",
        "DYN_SGLANG_GATEWAY_CHILD_INDEX": "0",
    }
    standby = {"SNAPSHOT_RESTORE_STANDBY": "1", "DYN_SNAPSHOT_CONTROL_DIR": str(folder / "new")}
    return [
        RoleCase("R1", "image diffusion", ("--image-diffusion-worker",)),
        RoleCase("R2", "video generation", ("--video-generation-worker",)),
        RoleCase("R3", "rerank", ("--rerank-worker",)),
        RoleCase("R4", "embedding", ("--embedding-worker",)),
        RoleCase("R5", "multimodal encode", _ENCODE, ready="health status"),
        RoleCase("R6", "multimodal", (*_BEHIND_ENCODER, "--disaggregation-mode", "pd")),
        RoleCase("R6d", "multimodal decode", (*_BEHIND_ENCODER, *_DECODE)),
        RoleCase("R7", "multimodal prefill", (*_BEHIND_ENCODER, *_PREFILL)),
        RoleCase("R8", "LLM diffusion", ("--dllm-algorithm", "LowConfidence", *_LLM)),
        RoleCase("R9", "aggregated decode", _LLM),
        RoleCase("R10", "disaggregated decode", (*_DECODE, *_LLM)),
        RoleCase("R11", "disaggregated prefill", (*_PREFILL, *_LLM)),
        RoleCase("R12", "non-leader node", (*_SECOND_NODE, *_LLM), ready="KV events"),
        RoleCase("R13", "gateway leader", _GATEWAY, ready="child 1"),
        RoleCase("R14", "gateway child", _GATEWAY, env=child),
        RoleCase("R15", "snapshot", _LLM[:-1], env={"DYN_SNAPSHOT_CONTROL_DIR": str(restored)}),
        RoleCase("R16", "restore standby", (), env=standby),
    ]


def write_model(folder: Path) -> Path:
    """A model without weights, whose tokenizer knows images."""
    write_tiny_model(folder)
    file = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.add_special_tokens(["<|image_pad|>", "<|video_pad|>"])
    tokenizer.save(file)
    return folder
