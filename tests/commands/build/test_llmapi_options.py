"""`inflight build --target llmapi`: its options, what it prints, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from build_engines.manifest import Manifest
from inflight.cli import cli
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.engines import TinyCheckpoint


def build(checkpoint: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["build", str(checkpoint), "--target", "llmapi", "--out", str(out), *options])


def test_a_dry_run_prints_the_model_file_and_writes_nothing(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    path = tmp_path / "arguments.yaml"
    path.write_text("tensor_parallel_size: 2\nmax_batch_size: 8\n")
    options = ("--dry-run", "--llm-arguments", str(path), "--llm-argument", "max_batch_size=16", "--max-seq-len", "512")
    done = build(tiny_checkpoint("llama"), tmp_path / "engine", *options)
    assert done.exit_code == 0, done.output
    said = yaml.safe_load(done.stdout)
    assert (said["tensor_parallel_size"], said["max_batch_size"], said["max_seq_len"]) == (2, 16, 512)
    assert not (tmp_path / "engine").exists()


def test_a_dry_run_of_an_encoder_prints_what_only_encodes(tmp_path: Path) -> None:
    done = build(tiny_encoder_checkpoint("rerank"), tmp_path / "engine", "--dry-run", "--max-seq-len", "100")
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout) == {"encode_only": True, "dtype": "float16", "max_seq_len": 100}
    assert not (tmp_path / "engine").exists()


def test_a_build_says_that_it_was_not_tried(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    done = build(tiny_checkpoint("llama"), tmp_path / "engine", "--llm-argument", "kv_cache_config.dtype=fp8")
    assert done.exit_code == 0, done.output
    assert "Note: The engine is untested: TensorRT-LLM loads it on a GPU" in done.stderr
    assert "LlamaForCausalLM" in done.stdout
    assert Manifest.read(tmp_path / "engine").kv_cache_precision == "fp8"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--llm-argument", "max_batchsize=4"], "There is no argument max_batchsize in the arguments; did you mean"),
        (["--llm-argument", "max_batch_size"], "'max_batch_size' is not an argument; write name=value."),
        (["--precision", "int8"], "--target llmapi has no --precision int8"),
        (
            ["--target", "openvino", "--llm-argument", "a=1"],
            "--llm-arguments and --llm-argument are for --target llmapi",
        ),
        (["--target", "openvino", "--dry-run"], "--dry-run is not for --target openvino"),
    ],
)
def test_wrong_usage_is_one_sentence(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, options: list[str], said: str
) -> None:
    done = build(tiny_checkpoint("llama"), tmp_path / "engine", *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "engine").exists()
