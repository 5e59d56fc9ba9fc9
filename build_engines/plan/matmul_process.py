"""Measures matrix multiplications in a process of its own, with the kernels of the embedded engine.

`build_engines.plan.machine_speed` starts it as `python -P -m` with the names of weight precisions. It prints one JSON
object: seconds by precision, and of one operation that computes almost nothing.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any

import numpy as np
import openvino
from openvino import opset13

from build_engines.openvino.target import compute_properties
from build_engines.plan.machine_speed import ROWS
from inflight.common.process_guard import die_with_parent

# Matrices of a large model: rows, columns, and how many; more than caches hold, in each precision.
_LARGE = (4096, 1024)
_LARGE_COUNTS = {"fp32": 6, "bf16": 14, "fp16": 14, "int8": 16, "int4": 24}
_SMALL, _SMALL_COUNT = (512, 256), 8
_TINY, _TINY_COUNT = (16, 16), 32
_INT4_GROUP = 128
_ROUNDS, _SMALL_RUNS, _TINY_RUNS = 4, 5, 20


def main() -> None:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers.write(json.dumps(_measure(sys.argv[1:])))
    answers.close()
    # A normal exit with OpenVINO loaded takes seconds.
    os._exit(0)


def _measure(precisions: list[str]) -> dict[str, Any]:
    operation = _Chain("fp32", _TINY, _TINY_COUNT)
    large = {name: _Chain(name, _LARGE, _LARGE_COUNTS[name]) for name in precisions}
    small = {name: _Chain(name, _SMALL, _SMALL_COUNT) for name in precisions}
    # In rounds, since other programs may be busy for a while; they only make it slower, so the best time counts.
    for _ in range(_ROUNDS):
        for _ in range(_TINY_RUNS):
            operation.run(1)
        for rows in ROWS:
            for chain in large.values():
                chain.run(rows)
            for chain in small.values():
                for _ in range(_SMALL_RUNS):
                    chain.run(rows)
    speeds: dict[str, Any] = {
        name: {"large": large[name].per_weight(), "small": small[name].per_weight()} for name in precisions
    }
    return speeds | {"operation": operation.best[1] / _TINY_COUNT}


class _Chain:
    """Matrices, compiled as the engine is; `best` is the least seconds of a pass over all, by the number of rows."""

    def __init__(self, precision: str, size: tuple[int, int], count: int) -> None:
        self._columns, self._weights = size[1], size[0] * size[1] * count
        self._request = _compile(precision, size, count).create_infer_request()
        self.best: dict[int, float] = {}

    def run(self, rows: int) -> None:
        inputs = [np.ones((rows, self._columns), np.float32)]
        if rows not in self.best:
            self._request.infer(inputs)
        started = time.perf_counter()
        self._request.infer(inputs)
        self.best[rows] = min(self.best.get(rows, math.inf), time.perf_counter() - started)

    def per_weight(self) -> list[float]:
        return [self.best[rows] / self._weights for rows in ROWS]


def _compile(precision: str, size: tuple[int, int], count: int) -> Any:
    """Return a chain of `count` matrices, alternately of `size` and transposed, compiled as the engine is."""
    rows, columns = size
    numbers = np.random.default_rng(0).integers(0, 256, rows * columns * 4 + count * 64, dtype=np.uint8)
    parameter = opset13.parameter([-1, columns], np.float32)
    chain: Any = parameter
    for number in range(count):
        shape = (rows, columns) if number % 2 == 0 else (columns, rows)
        # Other bytes for each matrix, so that OpenVINO doesn't share one copy of them.
        chain = opset13.matmul(chain, _matrix(precision, shape, numbers[number * 64 :]), False, True)
    model = openvino.Model([chain], [parameter], "matrices")
    return openvino.Core().compile_model(model, "CPU", compute_properties(precision))


def _matrix(precision: str, shape: tuple[int, int], numbers: Any) -> Any:
    """Return a matrix as an engine's file has it: integers with a zero point and a scale, as NNCF makes them."""
    rows, columns = shape
    size, scale = rows * columns, columns**-0.5
    if precision in ("int8", "int4"):
        groups = (1,) if precision == "int8" else (max(1, columns // _INT4_GROUP),)
        whole = [rows, columns] if precision == "int8" else [rows, groups[0], columns // groups[0]]
        ones = [rows, 1] if precision == "int8" else [rows, groups[0], 1]
        kind = openvino.Type.u8 if precision == "int8" else openvino.Type.u4
        middle, unit = (128, scale / 74) if precision == "int8" else (8, scale / 4.6)
        weights = _halves(_constant(kind, whole, numbers))
        zero = _halves(_constant(kind, ones, np.full(size, middle if precision == "int8" else 0x88, np.uint8)))
        scales = opset13.constant(np.full(ones, unit, np.float16))
        matrix = opset13.multiply(opset13.subtract(weights, zero), scales)
        if precision == "int4":
            matrix = opset13.reshape(matrix, np.array(shape), False)
        return opset13.convert(matrix, "f32")
    values = ((numbers[:size].astype(np.float32) - 127.5) * (scale / 74)).reshape(shape)
    if precision == "fp32":
        return opset13.constant(values)
    if precision == "fp16":
        return opset13.convert(opset13.constant(values.astype(np.float16)), "f32")
    upper = np.ascontiguousarray(values.view(np.uint32) >> 16).astype(np.uint16)
    return opset13.convert(_constant(openvino.Type.bf16, [rows, columns], upper.view(np.uint8).ravel()), "f32")


def _halves(node: Any) -> Any:
    return opset13.convert(node, "f16")


def _constant(kind: Any, shape: list[int], data: Any) -> Any:
    tensor = openvino.Tensor(kind, openvino.Shape(shape))
    target = tensor.data.view(np.uint8).reshape(-1)
    target[:] = data[: target.size]
    return opset13.constant(tensor)


if __name__ == "__main__":
    main()
