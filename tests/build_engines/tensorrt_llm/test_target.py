from __future__ import annotations

import json
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.manifest import GpuLimits, GpuMachine, verify
from tests.build_engines.build_runs import RecordedProgress, generator, names
from tests.build_engines.tensorrt_llm.conftest import Build
from tests.fixtures.errors import raises
from tests.fixtures.nvidia import A100, B200, H100, NvidiaPrograms
from tests.standins.nvidia.standin import read_engine

LIMITS = {"limits.max_batch_size": 8, "limits.max_num_tokens": 1024}


def test_an_engine_says_what_it_was_made_for_where_and_with_what(tmp_path: Path, build: Build) -> None:
    heard = RecordedProgress()
    built = build(LIMITS, heard)
    engine = tmp_path / "engine"
    manifest = verify(engine, hashes=True)
    assert manifest == built.manifest
    assert names(engine) == sorted([*manifest.files, "engine.json"])
    assert {"config.json", "rank0.engine", "tokenizer.json", "build.log"} <= manifest.files.keys()
    assert names(tmp_path) == ["checkpoint", "engine"]
    assert (manifest.target, manifest.architecture) == ("tensorrt-llm", "LlamaForCausalLM")
    assert (manifest.precision, manifest.kv_cache_precision) == ("fp16", "f16")
    assert (manifest.max_seq_len, manifest.vocab_size) == (2048, 1536)
    assert (manifest.layers, manifest.kv_heads, manifest.head_dim) == (2, 2, 16)
    assert (manifest.end_ids, manifest.pad_id, manifest.bos_id) == ([1], 0, 2)
    assert manifest.limits == GpuLimits(max_batch_size=8, max_num_tokens=1024, max_input_len=2047)
    assert manifest.machine == GpuMachine(gpu=H100["name"], compute_capability="9.0", driver="590.48.01")
    assert manifest.versions.items() >= {("tensorrt_llm", "1.2.1"), ("tensorrt", "10.14.1.48"), ("cuda", "13.1.0.036")}
    assert read_engine(engine / "rank0.engine")["sm"] == "9.0"
    assert heard.sentences == [
        "Reading the checkpoint",
        "Converting the checkpoint",
        "Building the engine",
        "Compiling rank 1 of 1",
        "Writing rank 1 of 1",
        "Checking the engine",
        "Writing the manifest",
    ]


def test_the_log_holds_the_commands_and_all_that_the_programs_said(tmp_path: Path, build: Build) -> None:
    build(LIMITS)
    log = (tmp_path / "engine" / "build.log").read_text()
    assert "$ /usr/bin/env python3 " in log
    assert "/models/core/llama/convert_checkpoint.py --model_dir " in log
    assert "$ trtllm-build --checkpoint_dir " in log
    assert "LEGACY WARNING" in log
    assert "Total time of building all engines" in log


def test_quantizing_for_two_gpus(tmp_path: Path, build: Build, nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[H100, H100])
    heard = RecordedProgress()
    recipe = LIMITS | {"quantization": "fp8", "kv_cache_dtype": "fp8", "tensor_parallel": 2, "workers": 2}
    manifest = generator(build(recipe, heard))
    assert (manifest.precision, manifest.kv_cache_precision, manifest.tensor_parallel) == ("fp8", "fp8", 2)
    assert {"rank0.engine", "rank1.engine"} <= manifest.files.keys()
    assert heard.sentences[1:-2] == [
        "Quantizing the checkpoint",
        "Loading the texts to calibrate with",
        "Calibrating",
        "Writing the quantized checkpoint",
        "Building the engine",
        "Compiling rank 1 of 2",
        "Writing rank 1 of 2",
        "Compiling rank 2 of 2",
        "Writing rank 2 of 2",
    ]


def test_precision_and_length_of_the_command_line_go_into_the_recipe(build: Build) -> None:
    options = {"precision": "int8_wo", "kv_precision": "fp8", "max_seq_len": 512}
    built = build(LIMITS | {"paged_context_fmha": False}, **options)
    manifest = generator(built)
    assert (manifest.precision, manifest.kv_cache_precision) == ("int8_wo", "fp8")
    assert manifest.max_seq_len == 512
    assert manifest.features is not None
    assert not manifest.features.kv_cache_reuse


def test_what_a_quantized_cache_excludes_is_told(build: Build) -> None:
    built = build(LIMITS | {"kv_cache_dtype": "int8"})
    assert built.notes == (
        "With a KV cache of int8 and quantization none, prompts can't be read from the paged cache, so prefixes are "
        "not reused and long prompts not computed in chunks.",
    )
    features = generator(built).features
    assert features is not None
    assert not features.chunked_context


def test_what_trtllm_build_switched_off_is_told_and_stands_in_the_manifest(
    build: Build, nvidia_programs: NvidiaPrograms
) -> None:
    """A deployment would reuse prefixes of an engine that can't."""
    nvidia_programs.having(fail="build:no_pages")
    built = build(LIMITS)
    assert built.notes[0].startswith("trtllm-build switched paged_context_fmha off (see build.log)")
    features = generator(built).features
    assert features is not None
    assert (features.paged_context_fmha, features.kv_cache_reuse, features.chunked_context) == (False, False, False)


def test_an_fp8_cache_stays_in_pages_through_the_build(build: Build, nvidia_programs: NvidiaPrograms) -> None:
    nvidia_programs.having(gpus=[B200])
    built = build(LIMITS | {"quantization": "nvfp4", "kv_cache_dtype": "fp8"})
    assert not built.notes
    features = generator(built).features
    assert features is not None
    assert features.kv_cache_reuse


def test_drafts_have_room_beyond_what_a_request_may_take(build: Build) -> None:
    recipe = LIMITS | {"speculation.mode": "draft_tokens_external", "speculation.max_draft_len": 10}
    manifest = generator(build(recipe))
    assert manifest.max_seq_len == 2048
    assert manifest.features is not None
    assert (manifest.features.speculative_decoding_mode, manifest.features.max_draft_len) == (
        "draft_tokens_external",
        10,
    )


def test_an_unchanged_build_is_recognised_and_another_kind_of_gpu_builds_anew(
    build: Build, nvidia_programs: NvidiaPrograms
) -> None:
    assert build(LIMITS).fresh
    assert not build(LIMITS).fresh
    assert not build(LIMITS | {"workers": 1, "log_level": "verbose"}).fresh
    nvidia_programs.having(gpus=[H100 | {"driver": "590.99"}])
    assert not build(LIMITS).fresh
    nvidia_programs.having(gpus=[B200])
    rebuilt = build(LIMITS)
    assert rebuilt.fresh
    assert rebuilt.manifest.machine is not None
    assert rebuilt.manifest.machine.compute_capability == "10.0"
    assert build(LIMITS | {"limits.max_batch_size": 4}, force=True).fresh


def test_a_changed_adapter_builds_anew(tmp_path: Path, build: Build) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    recipe = LIMITS | {"lora.directories": [str(adapter)], "lora.max_rank": 8}
    assert build(recipe).fresh
    assert not build(recipe).fresh
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    assert build(recipe).fresh
    config = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert config["build_config"]["lora_config"]["max_lora_rank"] == 8


@pytest.mark.parametrize(
    ("gpus", "versions", "recipe", "message", "code"),
    [
        ([], {}, {}, "nvidia-smi", "invalid_parameter"),
        ([A100], {}, {"quantization": "fp8"}, ("8.0", "quantization fp8"), "invalid_parameter"),
        ([A100], {}, {"kv_cache_dtype": "fp8"}, ("kv_cache_dtype fp8", "8.9"), "invalid_parameter"),
        ([H100], {}, {"quantization": "nvfp4"}, ("nvfp4", "10.0"), "invalid_parameter"),
        ([B200], {}, {"quantization": "int8_wo"}, "int8_wo", "invalid_parameter"),
        ([H100 | {"compute_capability": "7.5"}], {}, {}, "8.0", "invalid_parameter"),
        ([A100, H100], {}, {}, "8.0 and 9.0", "invalid_parameter"),
        (
            [H100],
            {},
            {"tensor_parallel": 2, "workers": 2},
            ("workers 2", "1 GPUs"),
            "invalid_parameter",
        ),
        ([H100], {"tensorrt_llm": "1.3.0"}, {}, "TensorRT-LLM 1.3.0", "invalid_parameter"),
        ([H100], {"tensorrt_llm": None}, {}, "TensorRT-LLM", "package_missing"),
    ],
)
def test_what_this_machine_can_not_build_is_refused_before_anything_runs(
    tmp_path: Path,
    build: Build,
    nvidia_programs: NvidiaPrograms,
    gpus: list[dict[str, str]],
    versions: dict[str, str | None],
    recipe: dict[str, object],
    message: str,
    code: str,
) -> None:
    installed = {name: version for name, version in (nvidia_programs.versions | versions).items() if version}
    nvidia_programs.having(gpus=gpus, versions=installed)
    heard = RecordedProgress()
    with raises(BuildError, code, naming=message) as caught:
        build(recipe | LIMITS, heard)
    assert "\n" not in str(caught.value)
    assert heard.sentences == ["Reading the checkpoint"]
    assert names(tmp_path) == ["checkpoint"]


def test_calibrating_without_the_hub_takes_texts_of_ones_own(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe = LIMITS | {"quantization": "int8_sq"}
    with raises(BuildError, "invalid_parameter", naming=("cnn_dailymail", "HF_HUB_OFFLINE")):
        build(recipe)
    (tmp_path / "texts").mkdir()
    assert build(recipe | {"calibration.dataset": str(tmp_path / "texts")}).fresh


def test_a_disk_with_too_little_room_is_found_before_converting(checkpoint: Path, build: Build) -> None:
    header = json.dumps({"big": {"dtype": "F32", "shape": [1 << 50], "data_offsets": [0, 0]}}).encode()
    (checkpoint / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with raises(BuildError, "disk_full", naming="4.5e+06 GB"):
        build(LIMITS)
