"""The stand-in's engines and execution contexts."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from cuda.bindings import runtime as cuda

_BYTES = {"INT64": 8, "FP32": 4}


class ICudaEngine:
    def __init__(self, head: dict[str, Any], model: bytes, logger: Any, types: Any) -> None:
        self._head, self._logger, self._types = head, logger, types
        self._tensors: dict[str, str] = {**head["inputs"], **head["outputs"]}
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.onnx"
            path.write_bytes(model)
            # In 32 bits whatever the types of the model, as far as this processor could do otherwise.
            self._compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._head["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return {"INT64": self._types.INT64, "FP32": self._types.FLOAT, "FP16": self._types.HALF}[self._tensors[name]]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in self._head["profiles"][profile_index][name]]

    def create_execution_context(self) -> IExecutionContext:
        return IExecutionContext(self._head, self._compiled.create_infer_request(), self._logger)


class IExecutionContext:
    def __init__(self, head: dict[str, Any], request: Any, logger: Any) -> None:
        self._head, self._request, self._logger = head, request, logger
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if not (0 <= profile_index < len(self._head["profiles"]) and cuda.is_stream(stream_handle)):
            raise RuntimeError("Error in set optimization profile async.")
        self._profile = profile_index
        self._shapes = {}  # shapes of the previous profile are gone
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        smallest, _, largest = self._head["profiles"][self._profile][name]
        if not all(low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True)):
            self._log(
                f"IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed: {shape})"
            )
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if not cuda.is_stream(stream_handle):
            raise RuntimeError("an invalid stream")  # the real one crashes
        if self._shapes.keys() != self._head["inputs"].keys():
            self._log("IExecutionContext::enqueueV3: Error Code 3: API Usage Error (an input has no shape)")
            return False
        given = {name: self._read(name, shape) for name, shape in self._shapes.items()}
        ((output, kind),) = self._head["outputs"].items()
        found = np.ascontiguousarray(self._request.infer(given)[0])
        assert found.itemsize == _BYTES[kind]
        self._check(output, found.nbytes)
        ctypes.memmove(self._addresses[output], found.ctypes.data, found.nbytes)
        return True

    def _read(self, name: str, shape: tuple[int, ...]) -> Any:
        size = int(np.prod(shape)) * _BYTES[self._head["inputs"][name]]
        self._check(name, size)
        return np.frombuffer(ctypes.string_at(self._addresses[name], size), np.int64).reshape(shape)

    def _check(self, name: str, size: int) -> None:
        if not cuda.holds(self._addresses[name], size):
            raise RuntimeError(f"{size} bytes of {name} are not in the GPU's memory")  # the real one crashes

    def _log(self, sentence: str) -> None:
        self._logger.log(self._logger.ERROR, sentence)
