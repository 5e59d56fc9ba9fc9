"""How a checkpoint is quantized already, and whether the LLM API reads that."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.manifest import GpuKvPrecision, GpuPrecision

MODELOPT_FILE = "hf_quant_config.json"
"""What ModelOpt writes beside a checkpoint that it quantized (export_hf_checkpoint)."""

# ModelOpt's names, as TensorRT-LLM 1.2 reads them (QuantAlgo; llmapi/llm_utils.py, _update_from_hf_quant_config).
_ALGORITHMS: dict[str, GpuPrecision] = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_BLOCK_SCALES": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq",
}
_READ = "ModelOpt's FP8, NVFP4, W4A16_AWQ and W4A8_AWQ, and fp8 in blocks"


@dataclass(frozen=True)
class Quantization:
    """`precision` is None where the weights are as they were trained, `kv` where keys and values are."""

    precision: GpuPrecision | None = None
    kv: GpuKvPrecision | None = None


def read_quantization(directory: Path, config: dict[str, Any]) -> Quantization:
    """Raises BuildError (`unsupported_architecture`) for what the LLM API doesn't read, and `checkpoint_damaged`."""
    path = directory / MODELOPT_FILE
    if path.is_file():
        return _modelopt(path)
    found = config.get("quantization_config")
    if not found:
        return Quantization()
    method = str(found.get("quant_method", "another method")) if isinstance(found, dict) else "another method"
    if method == "fp8" and found.get("weight_block_size"):
        return Quantization("fp8")
    if method == "modelopt":  # newer exports say there what the file beside it says
        return _named(directory, str(found.get("quant_algo", "")), None)
    raise _refused(directory, method)


def _modelopt(path: Path) -> Quantization:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["quantization"]
        algorithm, kv = str(found["quant_algo"]), found.get("kv_cache_quant_algo")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(
            f"{path} doesn't say how the checkpoint is quantized (quantization.quant_algo); fetch it again.",
            "checkpoint_damaged",
        ) from error
    return _named(path.parent, algorithm, kv)


def _named(directory: Path, algorithm: str, kv: str | None) -> Quantization:
    precision = _ALGORITHMS.get(algorithm.upper())
    if precision is None:
        raise _refused(directory, algorithm or "another method")
    if kv not in (None, "FP8"):
        raise _refused(directory, f"{kv} for keys and values")
    return Quantization(precision, "fp8" if kv else None)


def _refused(directory: Path, method: str) -> BuildError:
    return BuildError(
        f"{directory} is quantized with {method}, and the LLM API reads {_READ}; take the original weights, or "
        "quantize them with ModelOpt.",
        "unsupported_architecture",
    )
