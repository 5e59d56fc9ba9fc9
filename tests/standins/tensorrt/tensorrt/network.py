"""The stand-in's networks, and its parser of ONNX."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

_OPERATORS: dict[str, list[str]] = json.loads(Path(__file__).with_name("operators.json").read_text())
_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.BFLOAT16: "BF16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.BOOL: "BOOL",
}
# Operators whose inputs must have one type, as TensorRT checks in strongly typed networks.
_ONE_TYPE = {"Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Max", "Min", "Concat", "LayerNormalization", "Pow"}


@dataclass
class INetworkDefinition:
    strong: bool
    model: bytes = b""
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ParserError:
    node: int
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"In node {self.node} with name: and operator: {self.operator} (importNode): {self.reason}"


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: Any) -> None:
        self._network = network
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        onnx.checker.check_model(model)
        found = onnx.shape_inference.infer_shapes(onnx.load(model), strict_mode=True)
        self._errors = list(_refused(found.graph))
        self._network.model = found.SerializeToString()
        self._network.inputs = {each.name: _TYPES[each.type.tensor_type.elem_type] for each in found.graph.input}
        self._network.outputs = {each.name: _TYPES[each.type.tensor_type.elem_type] for each in found.graph.output}
        return not self._errors


def _refused(graph: Any) -> Iterator[ParserError]:
    """Yield the operators that TensorRT does not support, or not in the types of their inputs."""
    types = {each.name: each.data_type for each in graph.initializer}
    for each in (*graph.input, *graph.value_info, *graph.output):
        types[each.name] = each.type.tensor_type.elem_type
    for number, node in enumerate(graph.node):
        supported = _OPERATORS.get(node.op_type)
        if supported is None:
            yield ParserError(number, node.op_type, "UNSUPPORTED_NODE")
            continue
        given = [_TYPES.get(types.get(name, 0), "?") for name in node.input if name]
        if given and given[0] not in supported:
            yield ParserError(number, node.op_type, f"UNSUPPORTED_NODE_DATATYPE: {given[0]}")
        elif node.op_type in _ONE_TYPE and len(set(given)) > 1:
            yield ParserError(number, node.op_type, f"INVALID_NODE: inputs have the types {', '.join(given)}")
