from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_engines.cpu_precision import find_processor
from build_engines.plan.size import GIB
from tests.commands.plan.plan_reports import GPU, plan, report, write
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.encoders import tiny_encoder_checkpoint
from tests.fixtures.hub import NAME, Hub, HubModelFiles


@pytest.fixture
def run(runner_of: Callable[[str], CommandRunner]) -> CommandRunner:
    return runner_of("plan")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The config.json of Llama 3.1 8B and nothing else."""
    return write(tmp_path / "llama", "llama-3.1-8b", architectures=["LlamaForCausalLM"])


def test_an_openvino_model_has_the_size_and_the_precision_of_its_file(exported_llama: Path) -> None:
    found = report(exported_llama, "--memory", "4GiB", "--target", "openvino")
    size = (exported_llama / "openvino_model.bin").stat().st_size
    assert {option["precision"] for option in found["options"]} == {"fp32"}
    assert found["options"][0]["checkpoint_bytes"] == pytest.approx(size, abs=16)
    assert plan(exported_llama, "--precision", "int8").exit_code == 1
    assert plan(exported_llama, *GPU).exit_code == 1


def test_the_config_alone_is_enough(checkpoint: Path) -> None:
    found = report(checkpoint, *GPU, "--precision", "bf16", "--kv-cache-precision", "bf16", "--max-num-sequences", 4)
    assert found["parameters"] | {"counted_by": "config.json", "total": 8_030_261_248} == found["parameters"]
    assert found["device"] == {
        "kind": "gpu",
        "name": "NVIDIA H100 80GB HBM3",
        "count": 1,
        "memory_bytes": 81559 * 2**20,
        "sm": 90,
    }
    (option,) = found["options"]
    assert option == found["recommended"]
    assert option["weights_bytes"] == 16_060_522_496
    assert option["kv_bytes_per_token"] == 131_072
    assert option["sequence_bytes"] == 8192 * 131_072
    parts = sum(option[f"{part}_bytes"] for part in ("weights", "activation", "runtime", "overhead"))
    assert option["kv_cache_bytes"] == int((81559 * 2**20 - parts) * 0.9)
    assert option["needed_bytes"] == parts + int(4 * 8192 * 131_072 / 0.9)
    chosen = {name: option[name] for name in ("tensor_parallel", "pipeline_parallel", "max_batch_size", "max_seq_len")}
    assert chosen == {"tensor_parallel": 1, "pipeline_parallel": 1, "max_batch_size": 4, "max_seq_len": 8192}
    assert set(option["sequences"]) == {"2048", "8192", "32768", "131072"}


def test_the_file_itself_can_be_named(checkpoint: Path) -> None:
    assert report(checkpoint / "config.json", *GPU)["parameters"]["total"] == 8_030_261_248


def test_people_get_a_table_without_colours_in_a_pipe(checkpoint: Path) -> None:
    done = plan(checkpoint, *GPU)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert "8,030,261,248 parameters" in lines[0]
    assert "NVIDIA H100 80GB HBM3 with 79.6 GiB" in lines[1]
    (row,) = (line for line in lines if line.startswith("int4_awq") and line.split()[1] == "fp8")
    assert re.search(r"1 x 1 +5\.\d GiB +64\.0 KiB", row)
    assert any(line.startswith("Recommended: bf16 weights and bf16 KV cache; 1 GPU") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "target"),
    [([], "llmapi"), (["--target", "llmapi"], "llmapi"), (["--target", "openvino", "--memory", "64GiB"], "openvino")],
)
def test_the_target_that_runs_a_model_is_planned_for(tmp_path: Path, arguments: list[str], target: str) -> None:
    directory = write(tmp_path, "gemma-2-9b", model_type="gemma3_text", architectures=["Gemma3ForCausalLM"])
    assert report(directory, *arguments, *([] if target == "openvino" else GPU))["target"] == target


def test_a_target_that_does_not_run_a_model_is_not_planned_for(tmp_path: Path, run: CommandRunner) -> None:
    directory = write(tmp_path, "gemma-2-9b", model_type="gemma3_text", architectures=["Gemma3ForCausalLM"])
    done = run(str(directory), "--target", "tensorrt-llm", *GPU)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "build it with --target llmapi" in done.err
    assert done.err.endswith("[unsupported_architecture]\n")


def test_several_gpus_and_formats_can_be_asked_for(checkpoint: Path) -> None:
    found = report(
        checkpoint, "--gpu", "l4", "--gpus", 4, "--precision", "fp8", "--precision", "int4-awq",
        "--kv-cache-precision", "fp8", "--max-seq-len", 32768, "--max-num-sequences", 16,
    )  # fmt: skip
    assert [option["precision"] for option in found["options"]] == ["fp8", "int4_awq"]
    assert found["recommended"]["tensor_parallel"] * found["recommended"]["pipeline_parallel"] == 4
    assert found["recommended"]["sequences"]["32768"] >= 16


def test_where_nothing_fits_the_table_ends_with_what_would(checkpoint: Path) -> None:
    done = plan(checkpoint, "--memory", "12GiB", "--precision", "bf16")
    assert done.exit_code == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Nothing fits: 1 sequence of 8,192 tokens needs at least ")
    assert "the GPU has 12.0 GiB" in last
    assert "--precision fp8" in last


def test_without_a_gpu_it_plans_for_the_memory_that_this_machine_has_left(checkpoint: Path) -> None:
    found = report(checkpoint, "--no-speed")
    assert found["device"]["name"] == "this machine"
    assert 0 < found["device"]["memory_bytes"] < 2**50
    assert {option["precision"] for option in found["options"]} == {"bf16", "int8", "int4"}


def test_a_laptop_can_be_described(checkpoint: Path) -> None:
    found = report(checkpoint, "--target", "openvino", "--memory", "16GiB", "--precision", "int8")
    assert found["device"]["memory_bytes"] == 16 * GIB
    assert found["recommended"]["kv_cache_precision"] == "u8"
    told = plan(checkpoint, "--target", "openvino", "--memory", "16GiB").stdout
    tokens, sequences = re.search(r"--kv-cache-tokens (\d+) --max-num-sequences (\d+)", told).groups()  # type: ignore[union-attr]
    assert int(tokens) == int(sequences) * 8192


def test_weight_files_that_are_there_are_counted(checkpoint: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"model.embed_tokens.weight": torch.zeros(1000)}, checkpoint / "model.safetensors")
    found = report(checkpoint, *GPU)
    assert found["parameters"]["counted_by"] == "weight files"
    assert "hold 1,000 parameters and config.json describes 8,030,261,248" in found["notes"][0]


def test_a_quantized_checkpoint_is_planned_as_its_original(checkpoint: Path) -> None:
    config = checkpoint / "config.json"
    config.write_text(config.read_text()[:-1] + ', "quantization_config": {"quant_method": "awq"}}')
    assert "already quantized (awq)" in report(checkpoint, *GPU)["notes"][0]


def test_encoders_are_planned_for_one_gpu(run: CommandRunner) -> None:
    checkpoint = str(tiny_encoder_checkpoint("rerank"))
    for target in (["--target", "llmapi"], ["--target", "tensorrt"], []):
        done = run(checkpoint, "--gpu", "h100", *target, "--json")
        plan = json.loads(done.out)
        assert (done.code, plan["recommended"], plan["max_batch_tokens"]) == (0, "fp16", 8192)
    done = run(str(tiny_encoder_checkpoint("embed")), "--gpu", "h100", "--target", "llmapi")
    assert done.code == 1  # no embedder of BERT's architecture is built for it
    for arguments in (
        ["--target", "tensorrt-llm"],
        ["--precision", "int8"],
        ["--gpus", "2"],
        ["--task", "generate", "--target", "tensorrt"],
    ):
        done = run(checkpoint, "--gpu", "h100", *arguments)
        assert done.code == 2
        assert arguments[-1 if arguments[0] != "--gpus" else 0] in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "voodoo"], "The GPU 'voodoo' is not known; choose one of a10"),
        (["--gpu", "h100", "--memory", "24GiB"], "--gpu names a GPU and --memory describes one"),
        (["--memory", "24 bananas"], "'24 bananas' is not a size of memory"),
        (["--memory", "-24GiB"], "'-24GiB' is not a size of memory"),
        (["--gpu", "h100", "--gpus", "-1"], "-1 is not in the range"),
        (["--gpu", "h100", "--max-num-sequences", "0"], "0 is not in the range"),
        (["--gpu", "h100", "--max-seq-len", "-5"], "-5 is not in the range"),
        (["--gpu", "h100", "--precision", "fp7"], "--precision 'fp7' is not known for GPUs"),
        (["--precision", "fp8"], "--precision 'fp8' is not known for the target openvino; choose one of fp32"),
        (["--gpu", "h100", "--kv-cache-precision", "u8"], "--kv-cache-precision 'u8' is not known for GPUs"),
        (["--target", "openvino", "--gpu", "h100"], "runs on the processor"),
        (["--gpus", "2"], "runs on the processor"),
        (["--target", "tensorrt-llm"], "name the GPU with --gpu or its size with --memory"),
    ],
)
def test_wrong_usage_is_one_sentence(checkpoint: Path, arguments: list[str], words: str, run: CommandRunner) -> None:
    done = run(str(checkpoint), *arguments)
    assert done.code == 2
    sentence = done.err.partition("\nError: ")[2]
    assert words in sentence
    assert sentence.count("\n") == 1


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ({"model_type": "deepseek_v3"}, "unsupported_architecture", "multi-head latent attention"),
        ({"hidden_size": None}, "not_a_checkpoint", "hidden_size is missing"),
        ("{", "checkpoint_damaged", "is not valid JSON"),
        (None, "not_a_checkpoint", "has no config.json"),
        ({"max_position_embeddings": 4096}, "invalid_parameter", "4,096 tokens at most, so --max-seq-len 5000"),
    ],
)
def test_a_checkpoint_that_can_not_be_planned_is_one_sentence(
    checkpoint: Path, config: dict[str, Any] | str | None, code: str, words: str, run: CommandRunner
) -> None:
    path = checkpoint / "config.json"
    if config is None:
        path.unlink()
    else:
        path.write_text(config if isinstance(config, str) else json.dumps(json.loads(path.read_text()) | config))
    done = run(str(checkpoint), *GPU, "--max-seq-len", "5000")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert words in done.err
    assert done.err.endswith(f"[{code}]\n")


def test_of_the_hub_it_fetches_the_config_alone(checkpoint: Path, hub: Hub, tmp_path: Path) -> None:
    # In a separate process, as the library takes its settings when it is loaded.
    program = "from inflight.cli import main; main()"
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (files / "model.safetensors").write_bytes(b"")
    hub.models[NAME] = HubModelFiles(files)
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", NAME, *GPU, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env=hub.environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"Asking the hub for {NAME}\n")
    assert json.loads(done.stdout)["parameters"]["total"] == 8_030_261_248
    assert hub.fetched == ["config.json"]


def test_for_this_machine_it_predicts_tokens_per_second(tmp_path: Path) -> None:
    directory = write(tmp_path, "qwen2.5-0.5b")
    found = report(directory, "--precision", "bf16", "--precision", "fp32", "--kv-cache-precision", "u8")
    speed = found["speed"]
    assert speed["features"] == list(find_processor().features)
    assert (speed["prompt_tokens"], speed["answer_tokens"]) == (64, 64)
    assert min(*speed["bytes_per_second"].values(), *speed["operations_per_second"].values()) > 0
    for option in found["options"]:
        one, many = option["tokens_per_second"]["1"], option["tokens_per_second"]["64"]
        assert 0 < one < many
    printed = plan(directory, "--precision", "fp32", "--max-num-sequences", "8").stdout
    assert "tokens/s at 8" in printed
    assert find_processor().name in printed


@pytest.mark.parametrize(
    "arguments", [["--no-speed"], ["--target", "openvino", "--memory", "16GiB"], ["--gpu", "h100"]]
)
def test_of_other_machines_and_if_asked_it_predicts_no_speed(checkpoint: Path, arguments: list[str]) -> None:
    found = report(checkpoint, *arguments)
    assert found["speed"] is None
    assert all(option["tokens_per_second"] is None for option in found["options"])


def test_without_openvino_it_still_plans_memory(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = plan(checkpoint, "--precision", "int4", "--max-seq-len", "64")
    assert done.exit_code == 0
    assert done.stderr.startswith("Note: ")
    assert "tokens/s" not in done.stdout
