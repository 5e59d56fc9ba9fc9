from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from build_engines.manifest import Manifest
from inflight.cli import cli
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.engines import TinyCheckpoint, TinyEngine

Runners = Callable[[str], CommandRunner]


@pytest.fixture
def arguments(tmp_path: Path, tiny_checkpoint: TinyCheckpoint, tiny_engine: TinyEngine) -> list[str]:
    """The command that built the shared tiny engine, a copy of which is at its --out."""
    engine = shutil.copytree(tiny_engine("llama"), tmp_path / "engine")
    options = ["--precision", "fp32", "--name", "tiny-llama", "--out", str(engine)]
    return ["build", str(tiny_checkpoint("llama")), *options]


def test_an_unchanged_build_says_so(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0
    assert (
        done.stdout == f"{arguments[-1]} is up to date: same checkpoint, options and versions (--force builds again).\n"
    )
    assert done.stderr == "Reading the checkpoint\n"


def test_quiet_prints_nothing_about_success(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, [*arguments, "--quiet"])
    assert (done.exit_code, done.output) == (0, "")


def test_json_prints_the_manifest_alone_on_standard_output(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert Manifest.model_validate(json.loads(done.stdout)) == Manifest.read(Path(arguments[-1]))


@pytest.mark.slow  # the README's commands build so too, and test_tensorrt_llm_options has the steps of another target
def test_a_build_tells_its_steps_and_what_to_type_next(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    out = tmp_path / "engine"
    done = CliRunner().invoke(cli, ["build", str(tiny_checkpoint("gemma2")), "--out", str(out), "--precision", "bf16"])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines()[:4] == [
        "Reading the checkpoint",
        "Loading the exporter",
        "Converting Gemma2ForCausalLM to OpenVINO",
        "Testing the engine",
    ]
    assert "Note: Paged attention has no soft-capping" in done.stderr
    assert "Gemma2ForCausalLM, bf16 weights, u8 KV cache" in done.stdout
    assert done.stdout.endswith(f"Serve it with: inflight serve {out}\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere", "--out", "x"], "checkpoint_not_found"),
        ([".", "--out", "x"], "not_a_checkpoint"),
        (["nowhere", "--out", "."], "output_exists"),
    ],
)
def test_a_users_mistake_is_one_sentence_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner_of: Runners, arguments: list[str], code: str
) -> None:
    (tmp_path / "something").write_text("")
    monkeypatch.chdir(tmp_path)
    done = runner_of("build")(*arguments)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith("Error: ")
    assert done.err.endswith(f"[{code}]\n")


@pytest.mark.parametrize("arguments", [[], ["x"], ["x", "--out", "y", "--precision", "fp8"]])
def test_wrong_usage_ends_with_2(runner_of: Runners, arguments: list[str]) -> None:
    assert runner_of("build")(*arguments).code == 2


@pytest.mark.parametrize(
    ("option", "target", "has", "lacks"),
    [
        ("--precision", "openvino", "int4", "int4_awq"),
        ("--precision", "llmapi", "nvfp4", "int8"),
        ("--kv-cache-precision", "tensorrt-llm", "int8", "u8"),
    ],
)
def test_only_the_precisions_of_the_target_are_offered(
    runner_of: Runners, option: str, target: str, has: str, lacks: str
) -> None:
    done = runner_of("build")("x", "--out", "y", option, "q4_k_m", "--target", target)
    offered = done.err.partition("is not one of ")[2].partition(" for --target")[0].split(", ")
    assert has in offered
    assert lacks not in offered


def test_help_is_quick_and_shows_examples() -> None:
    script = (
        "import sys; from inflight.cli import cli; cli(['build', '--help'], standalone_mode=False)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "inflight build Qwen/Qwen2.5-0.5B-Instruct --out ./qwen" in done.stdout
    assert done.stdout.endswith("False\n")
