"""Reads how a checkpoint is quantized, and checks whether the LLM API supports it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, damaged, unsupported
from build_engines.manifest import GpuKvPrecision, GpuPrecision, KeptKvPrecision, KeptPrecision

MODELOPT_FILE = "hf_quant_config.json"
"""The file that ModelOpt writes into a quantized checkpoint (export_hf_checkpoint)."""
LAYERS_FILE = "quant_cfg.json"
"""A further file of ModelOpt if layers are quantized differently."""

# As TensorRT-LLM 1.2 reads them: llmapi/llm_utils.py, _update_from_hf_quant_config, and _torch/model_config.py,
# load_modelopt_quant_config and load_hf_quant_config; the latter asserts the block size. The names are
# those of QuantAlgo.
_ALGORITHMS: dict[str, GpuPrecision | KeptPrecision] = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_BLOCK_SCALES": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq",
    "MIXED_PRECISION": "mixed",
}
_KV_ALGORITHMS: dict[str, GpuKvPrecision | KeptKvPrecision] = {"FP8": "fp8", "NVFP4": "nvfp4"}
_BLOCK = [128, 128]
_UNNAMED = "another method"
_READ = "ModelOpt's FP8, NVFP4, W4A16_AWQ, W4A8_AWQ and MIXED_PRECISION, fp8 in blocks of 128 by 128, and mxfp4"


@dataclass(frozen=True)
class CheckpointQuantization:
    """`precision` is None if the weights are not quantized, `kv` if keys and values are not."""

    precision: GpuPrecision | KeptPrecision | None = None
    kv: GpuKvPrecision | KeptKvPrecision | None = None


def read_quantization(directory: Path, config: dict[str, Any]) -> CheckpointQuantization:
    """Return how a checkpoint is quantized.

    Raises BuildError: `unsupported_architecture` if the LLM API does not support it, and `checkpoint_damaged`.
    """
    path = directory / MODELOPT_FILE
    if path.is_file():
        return _modelopt(path)
    section = config.get("quantization_config")
    if not section:
        return CheckpointQuantization()
    method = str(section.get("quant_method") or _UNNAMED) if isinstance(section, dict) else _UNNAMED
    if method == "fp8":
        blocks = section.get("weight_block_size")
        if blocks == _BLOCK:
            return CheckpointQuantization("fp8")
        raise _refused(directory, f"fp8 in blocks of {blocks}" if blocks else "fp8 without blocks")
    if method == "mxfp4":  # gpt-oss, as it is published
        return CheckpointQuantization("mxfp4")
    if method == "modelopt":  # newer exports repeat the contents of the separate file here
        return _named(directory, section.get("quant_algo"), None)
    raise _refused(directory, method)


def only_in_config(directory: Path, config: dict[str, Any]) -> bool:
    """Return whether ModelOpt's file is missing, which 1.2's release candidates read."""
    section = config.get("quantization_config")
    return (
        isinstance(section, dict)
        and section.get("quant_method") == "modelopt"
        and not (directory / MODELOPT_FILE).is_file()
    )


def _modelopt(path: Path) -> CheckpointQuantization:
    try:
        section = json.loads(path.read_text(encoding="utf-8"))["quantization"]
        algorithm, kv = section["quant_algo"], section.get("kv_cache_quant_algo")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"{path} has no quantization.quant_algo; fetch the checkpoint again.") from error
    return _named(path.parent, algorithm, kv)


def _named(directory: Path, algorithm: object, kv: object) -> CheckpointQuantization:
    precision = _ALGORITHMS.get(str(algorithm).upper())
    if precision is None:
        raise _refused(directory, str(algorithm or _UNNAMED))
    if precision == "mixed" and not (directory / LAYERS_FILE).is_file():
        raise damaged(
            f"{directory} is quantized with {algorithm} but lacks {LAYERS_FILE}, which lists the layers; fetch"
            " the checkpoint again."
        )
    if kv is None:
        return CheckpointQuantization(precision)
    if str(kv).upper() not in _KV_ALGORITHMS:
        raise _refused(directory, f"{kv} for keys and values")
    return CheckpointQuantization(precision, _KV_ALGORITHMS[str(kv).upper()])


def _refused(directory: Path, method: str) -> BuildError:
    return unsupported(
        f"{directory} is quantized with {method}, but the LLM API supports {_READ}; use the original weights, or "
        "quantize them with ModelOpt."
    )
