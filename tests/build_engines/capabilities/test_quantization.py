"""Which checkpoints that are quantized already the LLM API reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.capabilities.quantization import CheckpointQuantization, read_quantization
from build_engines.errors import BuildError
from tests.fixtures.errors import raises


def modelopt(directory: Path, **quantization: Any) -> None:
    content = {"producer": {"name": "modelopt"}, "quantization": quantization}
    (directory / "hf_quant_config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [("FP8", "fp8"), ("NVFP4", "nvfp4"), ("W4A16_AWQ", "int4_awq"), ("W4A8_AWQ", "w4a8_awq"), ("fp8_pb_wo", "fp8")],
)
def test_modelopt_says_it_in_a_file_of_its_own(tmp_path: Path, algorithm: str, precision: Any) -> None:
    modelopt(tmp_path, quant_algo=algorithm, kv_cache_quant_algo=None)
    assert read_quantization(tmp_path, {}) == CheckpointQuantization(precision)
    modelopt(tmp_path, quant_algo=algorithm, kv_cache_quant_algo="FP8")
    assert read_quantization(tmp_path, {}) == CheckpointQuantization(precision, "fp8")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (None, CheckpointQuantization()),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, CheckpointQuantization("fp8")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, CheckpointQuantization("nvfp4")),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, CheckpointQuantization("mxfp4")),
    ],
)
def test_the_config_may_say_it(tmp_path: Path, section: Any, expected: CheckpointQuantization) -> None:
    assert read_quantization(tmp_path, {"quantization_config": section}) == expected


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "fp8"}, "fp8 without blocks"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "fp8 in blocks of [64, 64]"),
        ({"quant_method": "modelopt"}, "another method"),
        ({"quant_method": None}, "another method"),
        ("unreadable", "another method"),
    ],
)
def test_what_others_quantized_is_refused_by_name(tmp_path: Path, section: Any, named: str) -> None:
    with raises(BuildError, "unsupported_architecture", naming=named):
        read_quantization(tmp_path, {"quantization_config": section})


def test_keys_and_values_have_two_types_of_their_own(tmp_path: Path) -> None:
    modelopt(tmp_path, quant_algo="NVFP4", kv_cache_quant_algo="NVFP4")
    assert read_quantization(tmp_path, {}) == CheckpointQuantization("nvfp4", "nvfp4")
    modelopt(tmp_path, quant_algo="NVFP4", kv_cache_quant_algo="INT8")
    with raises(BuildError, "unsupported_architecture", naming="INT8"):
        read_quantization(tmp_path, {})


def test_a_mixture_is_told_layer_by_layer(tmp_path: Path) -> None:
    modelopt(tmp_path, quant_algo="MIXED_PRECISION")
    with raises(BuildError, "checkpoint_damaged", naming="quant_cfg.json"):
        read_quantization(tmp_path, {})
    (tmp_path / "quant_cfg.json").write_text("{}")
    assert read_quantization(tmp_path, {}) == CheckpointQuantization("mixed")


def test_modelopt_that_names_no_algorithm_says_so(tmp_path: Path) -> None:
    modelopt(tmp_path, quant_algo=None)
    with raises(BuildError, "unsupported_architecture"):
        read_quantization(tmp_path, {})


@pytest.mark.parametrize("content", ["{", "{}", '{"quantization": {}}', '{"quantization": "FP8"}'])
def test_a_file_that_does_not_say_it_is_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "hf_quant_config.json").write_text(content)
    with raises(BuildError, "checkpoint_damaged", naming="hf_quant_config.json"):
        read_quantization(tmp_path, {})
