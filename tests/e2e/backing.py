# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What a cluster serves from, and what it must answer to the letter."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.encoder import write_encoder, write_reranker
from tests.e2e.painter import write_filmer, write_painter
from tests.e2e.viewer import write_viewer
from tests.standin.tiny_model import write_tiny_model
from trio_worker.quickstart.cluster import CPU_ENGINE_ARGS, READY_LINE
from trio_worker.quickstart.recitation import PASSAGE, recitation_model
from trio_worker.standin import text_at

LOADS = ("--engine-route", "loads=get_loads:tm")
"""Running and waiting requests of each scheduler, as JSON, on the system status server."""

USER = "user: {}\nassistant:"
"""The tiny model's chat template for one user message."""


WHOLE = ("--disable-radix-cache", "--chunked-prefill-size", "-1")
"""What SGLang wants of an encoder: neither a prefix cache nor prefills in pieces."""


@dataclass(frozen=True, slots=True)
class Backing:
    """An engine with a model."""

    model: Path
    name: str
    """What the model is called over HTTP."""
    args: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    ready_line: str = READY_LINE
    """What the worker logs once it is registered."""
    peers: tuple[tuple[str, ...], ...] = ()
    """Arguments of the other workers that it needs."""

    def expected(self, question: str, count: int) -> str:
        """The first `count` tokens of the answer to a user message."""
        raise NotImplementedError


class Recitation(Backing):
    """The real SGLang scheduler on the CPU, with the model that knows one passage by heart."""

    @classmethod
    def make(cls) -> Recitation:
        """Neither flavour; blocks while the model is built, if it has to be."""
        args = (*CPU_ENGINE_ARGS, "--enable-metrics", *LOADS)
        return cls(recitation_model(print), "recitation", args)

    def expected(self, question: str, count: int) -> str:
        """A token is a letter of the passage."""
        return PASSAGE[:count]


class Encoder(Backing):
    """The real SGLang scheduler on the CPU, with a tiny random BERT that embeds."""

    @classmethod
    def make(cls, folder: Path) -> Encoder:
        """Neither flavour; blocks for transformers' import."""
        args = (*CPU_ENGINE_ARGS, "--embedding-worker", *WHOLE)
        return cls(write_encoder(folder / "encoder"), "encoder", args)


class Reranker(Backing):
    """The real SGLang scheduler on the CPU, with a tiny random BERT that scores pairs."""

    @classmethod
    def make(cls, folder: Path) -> Reranker:
        """Neither flavour; blocks for transformers' import."""
        args = (*CPU_ENGINE_ARGS, "--rerank-worker", *WHOLE)
        return cls(write_reranker(folder / "reranker"), "reranker", args)


class Viewer(Backing):
    """SGLang's real encoder and scheduler on the CPU, with a tiny random Qwen2-VL."""

    @classmethod
    def make(cls, folder: Path) -> Viewer:
        """Neither flavour; blocks for transformers' import."""
        args = (
            *CPU_ENGINE_ARGS,
            *("--mm-attention-backend", "sdpa"),
            *("--enable-multimodal", "--embedding-transfer-mode", "local"),
            # A prefix from the cache is computed with other roundings.
            "--disable-radix-cache",
        )
        return cls(
            write_viewer(folder / "viewer"),
            "viewer",
            (
                *args,
                *("--disaggregation-mode", "encode", "--chat-template", "qwen2-vl"),
                *("--multimodal-embedding-cache-capacity-gb", "0.01"),
                "--multimodal-embedding-cache-publisher",
            ),
            # Or the first picture waits for a C++ compiler, and the worker's loop with it.
            {"TORCHDYNAMO_DISABLE": "1"},
            peers=((*args, "--disaggregation-mode", "pd", "--dedicated-mm-encoder"),),
        )


class Painter(Backing):
    """SGLang's real generator on the CPU, with a tiny random Stable Diffusion."""

    @classmethod
    def make(cls, folder: Path) -> Painter:
        """Neither flavour; blocks while a process builds the model."""
        return cls(
            write_painter(folder / "painter"),
            "painter",
            ("--image-diffusion-worker", "--media-output-fs-url", (folder / "media").as_uri()),
            ready_line="Image diffusion model ready",
        )


class Filmer(Backing):
    """SGLang's real generator on the CPU, with a tiny random text-to-video pipeline."""

    @classmethod
    def make(cls, folder: Path) -> Filmer:
        """Neither flavour; blocks while a process builds the model."""
        return cls(
            write_filmer(folder / "filmer"),
            "filmer",
            ("--video-generation-worker", "--media-output-fs-url", (folder / "films").as_uri()),
            ready_line="Video generation model ready",
        )


class StandIn(Backing):
    """The GPU-free scheduler: letters in alphabetical order, by position."""

    @classmethod
    def make(cls, folder: Path, script: str) -> StandIn:
        """Neither flavour. `script` is the stand-in's; its model and log go to `folder`."""
        model = write_tiny_model(folder / "tiny")
        return cls(
            model,
            "tiny",
            ("--device", "cpu", "--stand-in-scheduler", script, *LOADS),
            {"TRIO_WORKER_STAND_IN_LOG": os.fspath(folder / "stand-in.jsonl")},
        )

    @property
    def log(self) -> Path:
        """The schedulers' event log."""
        return Path(self.env["TRIO_WORKER_STAND_IN_LOG"])

    def prompt_ids(self, question: str) -> list[int]:
        """What the prompt of one user message becomes: a byte is a token."""
        vocabulary = json.loads((self.model / "tokenizer.json").read_text())["model"]["vocab"]
        text = USER.format(question)
        # Only the first id and the length count, and the first is a letter.
        return [vocabulary[text[0]]] * len(text.encode())

    def expected(self, question: str, count: int) -> str:
        """Letters from the position after the prompt on."""
        ids = self.prompt_ids(question)
        return text_at(ids, len(ids), count)
