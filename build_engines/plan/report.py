"""A plan as JSON for scripts; all sizes are in bytes."""

from __future__ import annotations

from typing import Any

from build_engines.cpu_precision import find_processor
from build_engines.plan.fit import Fit
from build_engines.plan.footprint import KV_CACHE_FRACTION
from build_engines.plan.memory_plan import MemoryPlan
from build_engines.plan.speed import SpeedPlan

_LENGTHS = (2048, 8192, 32768)


def table_lengths(plan: MemoryPlan) -> list[int]:
    """Return the lengths for a table: the planned one, a few round ones and the longest."""
    longest = plan.model.shape.positions
    return sorted({plan.length, longest} | {length for length in _LENGTHS if length <= longest})


def as_json(plan: MemoryPlan, speed: SpeedPlan | None = None) -> dict[str, Any]:
    """Return the plan for JSON; `recommended` is null if nothing fits, and `speed` if it wasn't predicted."""
    model, wish = plan.model, plan.request
    parameters, shape = model.parameters, model.shape
    return {
        "checkpoint": model.where,
        "architecture": shape.architecture,
        "parameters": {
            "total": parameters.total,
            "embedding": parameters.embedding,
            "output": parameters.output,
            "layers": parameters.linear,
            "other": parameters.other,
            "counted_by": model.counted_from,
        },
        "notes": list(plan.notes),
        "target": wish.target,
        "device": {
            "kind": "processor" if wish.is_openvino else "gpu",
            "name": wish.device,
            "count": wish.devices,
            "memory_bytes": wish.memory,
            "sm": wish.sm,
        },
        "max_seq_len": plan.length,
        "max_num_sequences": wish.max_num_sequences,
        "speed": _speed(speed) if speed else None,
        "options": [_option(plan, fit, speed) for fit in plan.fits],
        "recommended": _option(plan, plan.recommended, speed) if plan.recommended else None,
        "advice": plan.advice,
    }


def _speed(speed: SpeedPlan) -> dict[str, Any]:
    processor = find_processor()
    return {
        "processor": processor.name,
        "cores": processor.cores,
        "features": list(processor.features),
        "prompt_tokens": speed.workloads[0].prompt,
        "answer_tokens": speed.workloads[0].answer,
        "bytes_per_second": {name: round(speed.machine.bandwidth(name)) for name in speed.machine.matrices},
        "operations_per_second": {
            name: round(speed.machine.operations_per_second(name)) for name in speed.machine.matrices
        },
    }


def _option(plan: MemoryPlan, fit: Fit, speed: SpeedPlan | None) -> dict[str, Any]:
    footprint = fit.footprint
    rates = speed.of(fit) if speed else None
    return {
        "precision": fit.weights.name,
        "kv_cache_precision": fit.kv.name,
        "fits": fit.fits,
        "reason": fit.reason,
        "notes": list(fit.notes),
        "tensor_parallel": fit.split.tensor,
        "pipeline_parallel": fit.split.pipeline,
        "max_batch_size": fit.max_batch_size,
        "max_num_tokens": fit.max_num_tokens,
        "max_seq_len": fit.length,
        "max_attention_window": list(plan.max_attention_window) or None,
        "kv_cache_free_gpu_mem_fraction": KV_CACHE_FRACTION,
        "checkpoint_bytes": fit.weights.checkpoint_bytes(plan.model.parameters),
        "weights_bytes": footprint.weights,
        "activation_bytes": footprint.activations,
        "runtime_bytes": footprint.runtime,
        "overhead_bytes": footprint.overhead,
        "mapped_bytes": footprint.mapped,
        "kv_bytes_per_token": footprint.kv_token,
        "sequence_bytes": footprint.sequence(fit.length),
        "needed_bytes": fit.needed,
        "kv_cache_bytes": fit.kv_bytes,
        "kv_cache_tokens": fit.kv_tokens,
        "tokens_per_second": {
            str(workload.sequences): round(rate, 2) for workload, rate in zip(speed.workloads, rates, strict=True)
        }
        if speed and rates
        else None,
        "sequences": {str(length): footprint.sequences(fit.memory, length) for length in table_lengths(plan)},
    }
