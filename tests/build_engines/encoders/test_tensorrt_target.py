from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from build_engines.build import BuildOptions, build_engine
from build_engines.encoders import tensorrt_target
from build_engines.encoders.tensorrt_target import TensorRtSettings, profiles
from build_engines.errors import BuildError
from build_engines.manifest import EncoderLimits, EncoderManifest, verify_engine
from inflight.cli import cli
from inflight.runtime.encoders.batch_planner import padded_length
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import A100, H100, STANDINS, NvidiaPrograms
from tests.fixtures.tensorrt import LIMITS, TensorRtEncoder

SCRIPT = Path(tensorrt_target.__file__).with_name("build_plan.py")


def test_an_engine_says_what_it_was_built_for(tensorrt_encoder: TensorRtEncoder) -> None:
    directory = tensorrt_encoder("embed")
    verify_engine(directory, hashes=True)
    engine = EncoderManifest.read(directory)
    assert (engine.target, engine.task, engine.precision, engine.limits) == (
        "tensorrt",
        "embed",
        "fp32",
        LIMITS,
    )
    assert engine.machine is not None
    assert (engine.machine.gpu, engine.machine.compute_capability) == (H100["name"], "9.0")
    assert engine.versions["tensorrt"] == "10.14.1.48"
    assert {"model.plan", "tokenizer.json", "build.log"} <= set(engine.files)
    assert not [name for name in engine.files if "onnx" in name]


@pytest.mark.parametrize("max_seq_len", [3, 128, 129, 512, 8192])
@pytest.mark.parametrize("limits", [LIMITS, EncoderLimits(max_batch_texts=256, max_batch_tokens=16384)])
def test_every_micro_batch_within_the_limits_fits_a_profile(max_seq_len: int, limits: EncoderLimits) -> None:
    made = list(profiles(max_seq_len, limits))
    for tokens in {padded_length(length, max_seq_len) for length in range(1, max_seq_len + 1)}:
        texts = max(1, min(limits.max_batch_texts, limits.max_batch_tokens // tokens))
        smallest, usual, largest = next(one for one in made if tokens <= one[2][1])
        assert smallest[1] <= tokens
        assert texts <= largest[0]
        assert all(low <= middle <= high for low, middle, high in zip(smallest, usual, largest, strict=True))
    # Memory is allocated for the largest shapes.
    assert all(
        texts == 1 or tokens <= 128 or texts * tokens <= 2 * limits.max_batch_tokens for _, _, (texts, tokens) in made
    )


@pytest.mark.parametrize(
    ("here", "code", "naming"),
    [
        ({"versions": {}}, "package_missing", "TensorRT"),
        ({"versions": {"tensorrt": "10.9.0.34"}}, "invalid_parameter", "10.9.0.34"),
        ({"gpus": []}, "gpu_missing", "nvidia-smi"),
        ({"gpus": [H100, A100]}, "invalid_parameter", ("8.0", "9.0", "CUDA_VISIBLE_DEVICES")),
    ],
)
def test_a_machine_that_can_not_build_is_refused_before_the_export(
    tmp_path: Path, tensorrt_programs: NvidiaPrograms, here: dict[str, Any], code: str, naming: str
) -> None:
    tensorrt_programs.having(**here)
    with raises(BuildError, code, naming=naming):
        build_engine(str(tiny_encoder_checkpoint("embed")), tmp_path / "engine", BuildOptions("tensorrt", task="embed"))
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        (BuildOptions("tensorrt", task="generate"), ("--target tensorrt", "tensorrt-llm")),
        (BuildOptions("tensorrt", task="embed", precision="int8"), "--precision int8"),
        (BuildOptions("tensorrt", task="embed", max_seq_len=513), "--max-seq-len 513"),
        (BuildOptions("tensorrt", task="embed", settings="fast"), "TensorRtSettings"),
    ],
)
def test_options_must_fit_the_target(tmp_path: Path, options: BuildOptions, naming: str) -> None:
    with raises(BuildError, "invalid_parameter", naming=naming):
        build_engine(str(tiny_encoder_checkpoint("embed")), tmp_path / "engine", options)


def run_script(directory: Path, operator: str = "Cast", **changes: Any) -> subprocess.CompletedProcess[str]:
    """Build a plan of one operator, from integers to `output`."""
    shape = ["texts", "tokens"]
    input_ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape)
    kind = TensorProto.FLOAT if operator == "Cast" else TensorProto.INT64
    attributes: dict[str, Any] = {"to": kind} if operator == "Cast" else {}
    node = helper.make_node(operator, ["input_ids"], ["output"], **attributes)
    graph = helper.make_graph([node], "graph", [input_ids], [helper.make_tensor_value_info("output", kind, shape)])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "model.onnx"
    )
    task = {
        "onnx": str(directory / "model.onnx"),
        "plan": str(directory / "model.plan"),
        "inputs": ["input_ids"],
        "output": "output",
        "profiles": [[[1, 1], [2, 8], [4, 16]]],
        "tf32": False,
        **changes,
    }
    (directory / "task.json").write_text(json.dumps(task))
    command = [sys.executable, str(SCRIPT), str(directory / "task.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_plan_is_built_with_its_profiles(tmp_path: Path, tensorrt_programs: NvidiaPrograms) -> None:
    done = run_script(tmp_path)
    assert done.returncode == 0, done.stderr
    head = json.loads((tmp_path / "model.plan").read_bytes().split(b"\n")[0].removeprefix(b"STAND-IN PLAN "))
    assert head["profiles"] == [{"input_ids": [[1, 1], [2, 8], [4, 16]]}]
    assert head["tf32"] is False


@pytest.mark.parametrize(
    ("operator", "changes", "fail", "message"),
    [
        ("Clip", {}, "", "[E] In node 0"),
        ("Abs", {}, "", "TypeError: The plan has the tensors"),
        ("Cast", {"profiles": []}, "", "[E] IBuilder::buildSerializedNetwork: Error Code 4"),
        ("Cast", {"profiles": [[[1, 9], [2, 8], [4, 16]]]}, "", "RuntimeError: Shape provided for opt"),
        ("Cast", {}, "plan:memory", "OutOfMemory"),
    ],
)
def test_a_plan_that_can_not_be_built_fails_with_the_reason(
    tmp_path: Path, tensorrt_programs: NvidiaPrograms, operator: str, changes: dict[str, Any], fail: str, message: str
) -> None:
    tensorrt_programs.having(fail=fail)
    done = run_script(tmp_path, operator, **changes)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_a_dry_run_shows_the_command(tmp_path: Path) -> None:
    checkpoint, out = str(tiny_encoder_checkpoint("embed")), tmp_path / "engine"
    arguments = ["build", checkpoint, "--out", str(out), "--target", "tensorrt", "--max-batch-size", "8", "--dry-run"]
    native = CliRunner().invoke(cli, arguments)
    assert native.exit_code == 0, native.output
    assert f"{out}/onnx/build_plan.py {out}/onnx/task.json" in native.output
    assert "[8, 128]" in native.output
    docker = CliRunner().invoke(cli, [*arguments, "--docker"])
    assert f"-v {out}:{out}" in docker.output
    refused = CliRunner().invoke(cli, [*arguments, "--quantization", "fp8"])
    assert refused.exit_code == 2
    assert "--quantization is for --target tensorrt-llm" in refused.output


@pytest.mark.slow
def test_a_plan_is_built_in_a_container(tmp_path: Path, tensorrt_programs: NvidiaPrograms) -> None:
    (tensorrt_programs.root / "bin" / "docker").symlink_to(STANDINS / "docker")
    checkpoint, out = str(tiny_encoder_checkpoint("embed")), tmp_path / "engine"
    arguments = ["--target", "tensorrt", "--docker", "--max-num-tokens", "512"]
    done = CliRunner().invoke(cli, ["build", checkpoint, "--out", str(out), *arguments])
    assert done.exit_code == 0, done.output
    manifest = EncoderManifest.read(out)
    assert (manifest.precision, manifest.limits) == ("fp16", EncoderLimits(max_batch_texts=256, max_batch_tokens=512))
    assert "container" in manifest.versions
    # Only the engine's directory is in the container.
    assert sum(one == "-v" for one in tensorrt_programs.docker_runs()[-1]) == 1


def test_limits_change_the_engine() -> None:
    keys = [
        tensorrt_target.target(BuildOptions("tensorrt", task="embed", settings=settings)).cache_key()
        for settings in (TensorRtSettings(), TensorRtSettings(LIMITS))
    ]
    assert keys[0] != keys[1]
