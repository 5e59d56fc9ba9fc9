"""`inflight build --target tensorrt-llm` from the command line, with stand-ins for NVIDIA's programs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from build_engines.manifest import Manifest
from inflight.cli import cli, main
from tests.build_engines.tensorrt_llm.models import config_of
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.nvidia import NvidiaPrograms


@pytest.fixture
def config_only(tmp_path: Path) -> Path:
    """What `--dry-run` needs of a checkpoint."""
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config_of("LlamaForCausalLM")))
    return directory


def run(checkpoint: Path, out: Path, *arguments: str) -> Result:
    given = ["build", str(checkpoint), "--target", "tensorrt-llm", "--out", str(out), *arguments]
    return CliRunner().invoke(cli, given, auto_envvar_prefix="INFLIGHT")


def test_the_commands_are_printed_without_gpu_weights_or_programs(
    config_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = run(config_only, tmp_path / "my engine", "--precision", "fp16", "--tensor-parallel", "2", "--dry-run")
    assert done.exit_code == 0, done.output
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    assert lines[0] == ["export", "HF_HUB_OFFLINE=1"]
    assert lines[1][:2] == ["python3", "/app/tensorrt_llm/examples/models/core/llama/convert_checkpoint.py"]
    assert lines[2][:5] == [
        "trtllm-build",
        "--checkpoint_dir",
        str(tmp_path / "my engine" / "tllm_checkpoint"),
        "--output_dir",
        str(tmp_path / "my engine"),
    ]
    assert len(lines) == 3
    assert not (tmp_path / "my engine").exists()


def test_the_printed_commands_build_the_engine_when_a_shell_runs_them(
    tmp_path: Path, tiny_checkpoint: TinyCheckpoint, nvidia_programs: NvidiaPrograms
) -> None:
    out = tmp_path / "engine"
    done = run(tiny_checkpoint("qwen2"), out, "--precision", "int8_wo", "--dry-run")
    subprocess.run(["sh", "-ec", done.stdout], check=True, capture_output=True)
    assert (out / "rank0.engine").is_file()
    config = json.loads((out / "config.json").read_text())
    assert config["pretrained_config"]["quantization"]["quant_algo"] == "W8A16"


def test_scripts_read_the_commands_as_json(config_only: Path, tmp_path: Path) -> None:
    done = run(config_only, tmp_path / "e", "--precision", "fp8", "--docker", "--dry-run", "--json")
    said = json.loads(done.stdout)
    assert [one["step"] for one in said["commands"]] == ["quantize", "build"]
    assert said["environment"] == {}
    assert said["lines"][1].startswith("docker run ")


def test_a_recipe_its_fields_and_flags(config_only: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("quantization: fp8\nlimits: {max_batch_size: 4, max_seq_len: 2048}\n")
    flags = ["--recipe", str(recipe), "--set", "kv_cache_dtype=fp8", "--set", "lora.target_modules=[attn_qkv]"]
    done = run(config_only, tmp_path / "e", *flags, "--max-batch-size", "16", "--dry-run")
    build = shlex.split(done.stdout.splitlines()[-1])
    assert build[build.index("--max_batch_size") + 1] == "16"
    assert build[build.index("--max_seq_len") + 1] == "2048"
    assert build[build.index("--lora_target_modules") + 1] == "attn_qkv"
    assert "--kv_cache_dtype fp8" in done.stdout


def test_every_part_of_a_recipe_has_flags(config_only: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    flags = "--quantization int8_wo --dtype bfloat16 --tensor-parallel 2 --pipeline-parallel 2 --workers 2"
    limits = "--max-batch-size 8 --max-input-len 100 --max-seq-len 200 --max-num-tokens 400 --max-beam-width 1"
    features = "--no-paged-context-fmha --no-kv-cache-reuse --no-chunked-context --multiple-profiles"
    drafts = "--speculative-decoding-mode lookahead_decoding --max-draft-len 15 --max-lora-rank 8"
    given = [*f"{flags} {limits} {features} {drafts}".split(), "--lora-dir", str(adapter), "--dry-run"]
    done = run(config_only, tmp_path / "e", *given)
    assert done.exit_code == 0, done.output
    convert, build = done.stdout.splitlines()[1:]
    assert (
        "--dtype bfloat16 --tp_size 2 --pp_size 2 --workers 2 --use_weight_only --weight_only_precision int8" in convert
    )
    for said in (
        "--max_batch_size 8 --max_input_len 100 --max_seq_len 200 --max_num_tokens 400 --max_beam_width 1",
        "--use_paged_context_fmha disable",
        "--multiple_profiles enable",
        f"--lora_plugin auto --max_lora_rank 8 --lora_dir {adapter}",
        "--speculative_decoding_mode lookahead_decoding --max_draft_len 15",
    ):
        assert said in build


def test_a_build_tells_its_steps_and_what_to_type_next(
    tmp_path: Path, tiny_checkpoint: TinyCheckpoint, nvidia_programs: NvidiaPrograms
) -> None:
    out = tmp_path / "engine"
    done = run(tiny_checkpoint("llama"), out, "--max-batch-size", "8", "--set", "kv_cache_dtype=int8")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "Reading the checkpoint",
        "Quantizing the checkpoint",
        "Loading the texts to calibrate with",
        "Calibrating",
        "Writing the quantized checkpoint",
        "Building the engine",
        "Compiling rank 1 of 1",
        "Writing rank 1 of 1",
        "Checking the engine",
        "Writing the manifest",
        "Note: With a KV cache of int8 and quantization none, prompts can't be read from the paged cache, so prefixes "
        "are not reused and long prompts not computed in chunks.",
    ]
    assert "LlamaForCausalLM, fp16 weights, int8 KV cache" in done.stdout
    assert done.stdout.endswith(f"Serve it with: inflight serve {out}\n")
    assert Manifest.read(out).target == "tensorrt-llm"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "openvino", "--max-batch-size", "8"], "--max-batch-size is for --target tensorrt-llm"),
        (["--target", "llmapi", "--set", "a=1"], "--set is for --target tensorrt-llm"),
        (["--target", "openvino", "--dry-run"], "--dry-run is not for --target openvino"),
        (["--target", "ctranslate2", "--dry-run"], "--dry-run is not for --target ctranslate2"),
        (["--target", "tensorrt-llm", "--image", "x"], "--image needs --docker"),
        (["--target", "tensorrt-llm", "--precision", "fp8", "--quantization", "fp8"], "--quantization and --precision"),
        (["--target", "tensorrt-llm", "--dtype", "float16", "--precision", "bf16"], "--dtype and --precision set"),
        (["--target", "llmapi", "--no-chunked-context"], "--chunked-context is for --target tensorrt-llm"),
        (["--target", "tensorrt-llm", "--set", "dtype"], "--set dtype is not of the form FIELD=VALUE"),
        (["--target", "tensorrt-llm", "--precision", "int8"], "has no --precision int8; choose one of bf16"),
        (["--target", "openvino", "--precision", "nvfp4"], "or --target tensorrt-llm"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_which_target_it_is_for(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["build", "x", "--out", "y", *arguments])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_a_wrong_recipe_is_one_sentence_with_its_code(
    config_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["build", str(config_only), "--target", "tensorrt-llm", "--out", str(tmp_path / "e")]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--set", "limits.max_batch=8", "--dry-run"])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said == (
        "Error: There is no field limits.max_batch in the recipe; did you mean limits.max_batch_size? "
        "[invalid_parameter]\n"
    )


@pytest.mark.slow
@pytest.mark.slow  # test_failures has a disk that is full in each program's own words
def test_a_disk_that_fills_up_midway_leaves_the_old_engine(
    tmp_path: Path, tiny_checkpoint: TinyCheckpoint, nvidia_programs: NvidiaPrograms
) -> None:
    """On a separate file system that is too small, which takes the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    checkpoint = tiny_checkpoint("llama")
    options = ["--target", "tensorrt-llm", "--out", str(disk / "engine"), "--max-batch-size", "8", "--force"]
    # The file system is gone with the namespace, so what is on it is read inside.
    script = f"""
        mount -t tmpfs -o size=8m tmpfs {disk} || exit 77
        "$@" && sha256sum {disk}/engine/rank0.engine
        STANDIN_ENGINE_BYTES=50000000 "$@"
        echo "ended with $?"; find {disk} -mindepth 1 -maxdepth 1; sha256sum {disk}/engine/rank0.engine
    """
    command = [sys.executable, "-c", "from inflight.cli import main; main()", "build", str(checkpoint), *options]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *command], capture_output=True, text=True, check=False
    )
    if "ended with" not in done.stdout:
        pytest.skip("this user may not mount a file system")
    assert "ended with 1" in done.stdout, done.stderr
    assert "[disk_full]" in done.stderr
    sums = [line for line in done.stdout.splitlines() if line.endswith("rank0.engine")]
    assert len(sums) == 2
    assert sums[0] == sums[1]
    assert f"\n{disk}/engine\n" in done.stdout
