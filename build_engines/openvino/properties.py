"""How OpenVINO computes an engine of each weight precision."""

from __future__ import annotations

from typing import Any

from build_engines.processor import find_processor

_HINTS = {"fp32": "f32", "fp16": "f16"}
_ACTIVATIONS_PER_SCALE = 128
"""How many activations OpenVINO quantizes with one scale before it multiplies them with int8 weights.

With its default of 32, steps take a quarter longer (docs/internals/measurements.md). Not measured with AMX.
"""


def compute_properties(precision: str) -> dict[str, Any]:
    """Return properties for compiling a model with these weights; what integers do not compute is computed in bf16."""
    found: dict[str, Any] = {"INFERENCE_PRECISION_HINT": _HINTS.get(precision, "bf16")}
    if precision == "int8" and not find_processor().has_amx:
        found["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _ACTIVATIONS_PER_SCALE
    return found
