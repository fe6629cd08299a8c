# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""Dynamo's own parser behind ours: every way out of it, and which role it selects."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.fakes.heavy  # noqa: F401 (pays SGLang's import before per-test time-outs start)
from trio_worker.cli import PROGRAM, Role, parse_config, role_of, run_parser
from trio_worker.errors import BadArguments, ModelMissing, StartupExit
from trio_worker.process import raise_notify_size

pytestmark = pytest.mark.filterwarnings("ignore:--use-sglang-tokenizer is deprecated")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DYN_SNAPSHOT_CONTROL_DIR", "DYN_SGLANG_GATEWAY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Dynamo's parser writes to the environment.
    monkeypatch.setenv("DYN_RESPONSE_PLANE", "tcp")
    monkeypatch.setenv("SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS", "0")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder; the parser does not look inside."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    return str(tmp_path)


def parse(*argv: str) -> Any:
    return asyncio.run(parse_config(list(argv)))


def test_a_configuration_is_dynamos(model: str) -> None:
    config = parse(
        "--model-path", model, "--device", "cpu", "--namespace", "ns", "--page-size", "4"
    )
    assert config.server_args.model_path == model
    assert config.server_args.page_size == 4
    assert (config.dynamo_args.namespace, config.dynamo_args.endpoint) == ("ns", "generate")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--bogus", "1"], "unrecognized arguments: --bogus 1"),
        (["stray"], "unrecognized arguments: stray"),
        (["--tp", "x"], "invalid int value: 'x'"),
        (["--discovery-backend", "zoo"], "invalid choice: 'zoo'"),
    ],
)
def test_what_argparse_refuses_has_usage_and_status_2(
    argv: list[str], said: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadArguments) as refused:
        parse("--model-path", model, *argv)
    assert (refused.value.status, refused.value.line) == (2, "")
    shown = capsys.readouterr().err
    assert shown.startswith(f"usage: {PROGRAM} ")
    assert f"{PROGRAM}: error: " in shown
    assert said in shown


def test_no_model_is_a_bad_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadArguments):
        parse()
    assert "the following arguments are required: --model-path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--rerank-worker", "--embedding-worker"], "--rerank-worker cannot be combined"),
        (["--endpoint", "a.b"], "Invalid endpoint format: 'a.b'"),
        (["--dedicated-mm-encoder"], "--dedicated-mm-encoder requires --enable-multimodal"),
        (["--disagg-config", "/nope.yaml"], "must be provided together"),
        (["--config", "/nope.yaml"], "Config file not found: /nope.yaml"),
        (["--gateway-workers", "2", "--tokenizer-worker-num", "3"], "conflicts with"),
        (["--gateway-workers", "2", "--enable-lora"], "gateway mode is not supported with"),
        (["--gateway-workers", "2", "--embedding-worker"], "not with --embedding-worker"),
    ],
)
def test_what_contradicts_itself_has_one_line_and_status_2(
    argv: list[str], line: str, model: str
) -> None:
    with pytest.raises(BadArguments) as refused:
        parse("--model-path", model, "--device", "cpu", *argv)
    assert refused.value.status == 2
    assert line in refused.value.line


def test_dynamos_own_exit_is_a_bad_argument(model: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BadArguments) as refused:
        parse(
            "--model-path", model, "--tool-call-parser", "qwen", "--dyn-tool-call-parser", "hermes"
        )
    # It has been said.
    assert refused.value.line == ""
    assert "Cannot use both --tool-call-parser and --dyn-tool-call-parser" in caplog.text


def test_a_model_that_cannot_be_fetched_is_named() -> None:
    with pytest.raises(ModelMissing) as missing:
        parse("--model-path", "nobody/nothing")
    assert missing.value.status == 1
    assert missing.value.line.startswith("model 'nobody/nothing' can't be found or fetched: ")


def test_a_missing_template_is_no_argument_error(model: str) -> None:
    with pytest.raises(FileNotFoundError, match="Custom Jinja template file not found"):
        parse("--model-path", model, "--custom-jinja-template", "/nope.jinja")


def test_help_is_dynamos_whole_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartupExit) as leaving:
        parse("--help")
    assert (leaving.value.status, leaving.value.line) == (0, "")
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {PROGRAM} ")
    for flag in ("--namespace", "--enable-rl", "--router-mode", "--mem-fraction-static"):
        assert flag in shown


def test_the_program_name_is_put_back(model: str) -> None:
    before = sys.argv[0]
    parse("--model-path", model, "--device", "cpu")
    with pytest.raises(BadArguments):
        parse("--bogus")
    assert sys.argv[0] == before


@pytest.mark.parametrize(
    ("argv", "status", "line"),
    [
        (
            ["--model-path", "nobody/nothing"],
            1,
            "trio-worker: error: model 'nobody/nothing' can't be found or fetched: "
            "Model snapshots for 'nobody/nothing' not found in cache\n",
        ),
        (
            ["--model-path", "m", "--disagg-config-key", "k"],
            2,
            "trio-worker: error: Both 'disagg_config' and 'disagg_config_key' must be provided "
            "together.\n",
        ),
    ],
)
def test_start_up_ends_with_one_line(
    argv: list[str],
    status: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Left(Exception):
        pass

    def leave(status: int) -> None:
        raise Left(status)

    monkeypatch.setattr("trio_worker.shutdown.leave", leave)
    with pytest.raises(Left, match=f"^{status}$"):
        run_parser(argv)
    assert capsys.readouterr().err == line


# ---- roles ----


def selected(
    *, mode: str = "agg", node_rank: int = 0, tokenizers: int = 1, **flags: bool
) -> SimpleNamespace:
    from dynamo.common.constants import DisaggregationMode

    plain = dict.fromkeys(
        (
            "image_diffusion_worker",
            "video_generation_worker",
            "rerank_worker",
            "embedding_worker",
            "multimodal_encode_worker",
            "multimodal_worker",
            "diffusion_worker",
        ),
        False,
    )
    return SimpleNamespace(
        server_args=SimpleNamespace(node_rank=node_rank, tokenizer_worker_num=tokenizers),
        dynamo_args=SimpleNamespace(**{**plain, **flags}, gateway_workers=None),
        serving_mode=DisaggregationMode(mode),
    )


@pytest.mark.parametrize(
    ("config", "role"),
    [
        ({}, Role.DECODE),
        ({"mode": "decode"}, Role.DISAGGREGATED_DECODE),
        ({"mode": "prefill"}, Role.PREFILL),
        ({"image_diffusion_worker": True, "diffusion_worker": True}, Role.IMAGE_DIFFUSION),
        ({"video_generation_worker": True, "diffusion_worker": True}, Role.VIDEO_GENERATION),
        ({"rerank_worker": True}, Role.RERANK),
        ({"embedding_worker": True}, Role.EMBEDDING),
        ({"multimodal_encode_worker": True}, Role.MULTIMODAL_ENCODE),
        ({"multimodal_worker": True}, Role.MULTIMODAL),
        ({"multimodal_worker": True, "mode": "decode"}, Role.MULTIMODAL),
        ({"multimodal_worker": True, "mode": "prefill"}, Role.MULTIMODAL_PREFILL),
        ({"diffusion_worker": True}, Role.LLM_DIFFUSION),
        ({"diffusion_worker": True, "node_rank": 1}, Role.NON_LEADER),
        ({"node_rank": 1, "tokenizers": 4, "mode": "prefill"}, Role.NON_LEADER),
        ({"tokenizers": 4}, Role.GATEWAY_LEADER),
        ({"tokenizers": 4, "mode": "prefill"}, Role.GATEWAY_LEADER),
    ],
)
def test_roles_are_dispatched_in_the_incumbents_order(config: dict[str, Any], role: Role) -> None:
    assert role_of(selected(**config)) is role


def test_the_environment_selects_children_and_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SGLANG_GATEWAY_PARENT_PID", "1")
    assert role_of(selected(tokenizers=4)) is Role.GATEWAY_CHILD
    monkeypatch.setenv("DYN_SNAPSHOT_CONTROL_DIR", "/snapshots")
    assert role_of(selected()) is Role.SNAPSHOT


@pytest.mark.parametrize(
    ("argv", "role"),
    [
        ([], Role.DECODE),
        (["--disaggregation-mode", "decode"], Role.DISAGGREGATED_DECODE),
        (["--disaggregation-mode", "prefill"], Role.PREFILL),
        (["--embedding-worker"], Role.EMBEDDING),
        (["--rerank-worker"], Role.RERANK),
        (["--image-diffusion-worker"], Role.IMAGE_DIFFUSION),
        (["--video-generation-worker"], Role.VIDEO_GENERATION),
        (["--enable-multimodal", "--disaggregation-mode", "encode"], Role.MULTIMODAL_ENCODE),
        (
            ["--enable-multimodal", "--dedicated-mm-encoder", "--disaggregation-mode", "pd"],
            Role.MULTIMODAL,
        ),
        (
            ["--enable-multimodal", "--dedicated-mm-encoder", "--disaggregation-mode", "prefill"],
            Role.MULTIMODAL_PREFILL,
        ),
        (["--dllm-algorithm", "LowConfidence"], Role.LLM_DIFFUSION),
        (["--gateway-workers", "2"], Role.GATEWAY_LEADER),
        (["--nnodes", "2", "--node-rank", "1", "--tp", "2"], Role.NON_LEADER),
    ],
)
def test_real_command_lines_select_their_roles(argv: list[str], role: Role, model: str) -> None:
    assert role_of(parse("--model-path", model, "--device", "cpu", *argv)) is role


@pytest.mark.parametrize(("chosen", "effective"), [((), 64), (("--batch-notify-size", "32"), 32)])
def test_more_outputs_leave_in_one_turn_unless_the_operator_says(
    model: str, chosen: tuple[str, ...], effective: int
) -> None:
    from dynamo.sglang._compat import resolved_server_args

    config = parse("--model-path", model, "--device", "cpu", *chosen)
    raise_notify_size(config.server_args)
    assert resolved_server_args(config.server_args).batch_notify_size == effective
