"""The stand-ins for NVIDIA's programs refuse what those would refuse; else they would prove nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.nvidia import B200, NvidiaPrograms

CONVERTED = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "max_position_embeddings": 64,
    "mapping": {"world_size": 1},
    "quantization": {"quant_algo": None, "kv_cache_quant_algo": "INT8"},
}


def trtllm_build(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "config.json").write_text(json.dumps(CONVERTED))
    (directory / "rank0.safetensors").write_text("")
    places = ["--checkpoint_dir", str(directory), "--output_dir", str(directory / "engine")]
    timings = ["--output_timing_cache", str(directory / "model.cache")]
    return subprocess.run(["trtllm-build", *places, *timings, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max_output_len", "5"], "unrecognized arguments: --max_output_len"),
        (["--use_paged_context_fmha", "on"], "invalid choice: 'on'"),
        (
            ["--multiple_profiles", "enable", "--opt_num_tokens", "8"],
            "multiple_profiles is enabled, while opt_num_tokens",
        ),
        (["--gather_context_logits", "--max_draft_len", "4"], "Gather context logits is not support with draft len"),
        (
            ["--speculative_decoding_mode", "eagle", "--max_batch_size", "513", "--max_draft_len", "4"],
            "Max batch size > 512 is not supported for EAGLE",
        ),
    ],
)
def test_trtllm_build_refuses_what_upstreams_would(
    tmp_path: Path, nvidia_programs: NvidiaPrograms, arguments: list[str], said: str
) -> None:
    done = trtllm_build(tmp_path, *arguments)
    assert done.returncode != 0
    assert said in done.stderr


def test_trtllm_build_refuses_integers_on_blackwell(tmp_path: Path, nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[B200])
    assert "INT8/INT4 quantization is not supported on SM>=100" in trtllm_build(tmp_path).stderr


def test_trtllm_build_switches_off_with_a_warning_what_upstreams_does(
    tmp_path: Path, nvidia_programs: NvidiaPrograms
) -> None:
    done = trtllm_build(tmp_path, "--use_paged_context_fmha", "enable")
    assert done.returncode == 0, done.stderr
    assert "[W] Overriding use_paged_context_fmha to disable" in done.stdout
    written = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert written["build_config"]["plugin_config"]["use_paged_context_fmha"] is False


def test_docker_runs_nothing_with_a_path_that_is_not_mounted(tmp_path: Path, nvidia_programs: NvidiaPrograms) -> None:
    (tmp_path / "file").write_text("here")
    run = ["docker", "run", "--rm"]
    command = [nvidia_programs.images[0], "cat", str(tmp_path / "file")]
    assert subprocess.run([*run, *command], capture_output=True, check=False).returncode == 1
    mounted = subprocess.run([*run, "-v", f"{tmp_path}:{tmp_path}", *command], capture_output=True, check=True)
    assert mounted.stdout == b"here"
