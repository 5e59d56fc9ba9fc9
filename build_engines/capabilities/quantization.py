"""How a checkpoint is quantized already, and whether the LLM API reads that."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.manifest import GpuKvPrecision, GpuPrecision, KeptKvPrecision, KeptPrecision

MODELOPT_FILE = "hf_quant_config.json"
"""What ModelOpt writes beside a checkpoint that it quantized (export_hf_checkpoint)."""
LAYERS_FILE = "quant_cfg.json"
"""What it writes too, where each layer is quantized in its own way."""

# As TensorRT-LLM 1.2 reads them: llmapi/llm_utils.py, _update_from_hf_quant_config, and _torch/model_config.py,
# load_modelopt_quant_config and load_hf_quant_config, of which the latter asserts the blocks' size. The names are
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
    """`precision` is unset if the weights are not quantized, `kv` if keys and values are not."""

    precision: GpuPrecision | KeptPrecision | None = None
    kv: GpuKvPrecision | KeptKvPrecision | None = None


def read_quantization(directory: Path, config: dict[str, Any]) -> CheckpointQuantization:
    """Raises BuildError (`unsupported_architecture`) for what the LLM API doesn't read, and `checkpoint_damaged`."""
    path = directory / MODELOPT_FILE
    if path.is_file():
        return _modelopt(path)
    found = config.get("quantization_config")
    if not found:
        return CheckpointQuantization()
    method = str(found.get("quant_method") or _UNNAMED) if isinstance(found, dict) else _UNNAMED
    if method == "fp8":
        blocks = found.get("weight_block_size")
        if blocks == _BLOCK:
            return CheckpointQuantization("fp8")
        raise _refused(directory, f"fp8 in blocks of {blocks}" if blocks else "fp8 without blocks")
    if method == "mxfp4":  # gpt-oss, as it is published
        return CheckpointQuantization("mxfp4")
    if method == "modelopt":  # newer exports say there what the file beside it says
        return _named(directory, found.get("quant_algo"), None)
    raise _refused(directory, method)


def only_in_config(directory: Path, config: dict[str, Any]) -> bool:
    """Whether ModelOpt's file is missing, in which `_update_from_hf_quant_config` up to 1.2's candidates looks."""
    found = config.get("quantization_config")
    return (
        isinstance(found, dict)
        and found.get("quant_method") == "modelopt"
        and not (directory / MODELOPT_FILE).is_file()
    )


def _modelopt(path: Path) -> CheckpointQuantization:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["quantization"]
        algorithm, kv = found["quant_algo"], found.get("kv_cache_quant_algo")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BuildError(
            f"{path} doesn't say how the checkpoint is quantized (quantization.quant_algo); fetch it again.",
            "checkpoint_damaged",
        ) from error
    return _named(path.parent, algorithm, kv)


def _named(directory: Path, algorithm: object, kv: object) -> CheckpointQuantization:
    precision = _ALGORITHMS.get(str(algorithm).upper())
    if precision is None:
        raise _refused(directory, str(algorithm or _UNNAMED))
    if precision == "mixed" and not (directory / LAYERS_FILE).is_file():
        raise BuildError(
            f"{directory} is quantized with {algorithm} and lacks {LAYERS_FILE}, which says how each layer is; fetch"
            " the checkpoint again.",
            "checkpoint_damaged",
        )
    if kv is None:
        return CheckpointQuantization(precision)
    if str(kv).upper() not in _KV_ALGORITHMS:
        raise _refused(directory, f"{kv} for keys and values")
    return CheckpointQuantization(precision, _KV_ALGORITHMS[str(kv).upper()])


def _refused(directory: Path, method: str) -> BuildError:
    return BuildError(
        f"{directory} is quantized with {method}, and the LLM API reads {_READ}; take the original weights, or "
        "quantize them with ModelOpt.",
        "unsupported_architecture",
    )
