"""The stand-ins for NVIDIA's programs refuse what those would refuse; else they would prove nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fixtures.nvidia import NvidiaPrograms

CONVERTED = '{"mapping": {"world_size": 1}, "quantization": {"quant_algo": null, "kv_cache_quant_algo": "INT8"}}'


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
        ([], "Paged Context FMHA doesn't work with int8 kv cache"),
    ],
)
def test_trtllm_build_refuses_what_upstreams_would(
    tmp_path: Path, nvidia_programs: NvidiaPrograms, arguments: list[str], said: str
) -> None:
    (tmp_path / "config.json").write_text(CONVERTED)
    done = subprocess.run(
        ["trtllm-build", "--checkpoint_dir", str(tmp_path), "--output_dir", str(tmp_path / "engine"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr


def test_docker_runs_nothing_with_a_path_that_is_not_mounted(tmp_path: Path, nvidia_programs: NvidiaPrograms) -> None:
    (tmp_path / "file").write_text("here")
    run = ["docker", "run", "--rm"]
    command = [nvidia_programs.images[0], "cat", str(tmp_path / "file")]
    assert subprocess.run([*run, *command], capture_output=True, check=False).returncode == 1
    mounted = subprocess.run([*run, "-v", f"{tmp_path}:{tmp_path}", *command], capture_output=True, check=True)
    assert mounted.stdout == b"here"
