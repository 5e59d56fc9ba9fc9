"""Runs an encoder's plan with TensorRT, on the first GPU that this process sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt
from cuda.bindings import runtime as cuda

from inflight.runtime.encoders.batch_planner import PlannerLimits, padded_length
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.padding import model_inputs

_FILE = "model.plan"
_OUTPUT = "output"
_ID_BYTES, _VALUE_BYTES = 8, 4


class TensorRtEncoder:
    """One execution context of a plan, with a stream and the memory of its largest micro-batch."""

    packed = False

    def __init__(self, engine: Any, manifest: EncoderDescription) -> None:
        self._manifest = manifest
        self._context = engine.create_execution_context()
        if self._context is None:
            raise RuntimeError("the GPU has too little free memory for the engine; lower num_requests, or free some")
        count = engine.num_optimization_profiles
        shapes = [engine.get_tensor_profile_shape(manifest.inputs[0], number) for number in range(count)]
        # The largest texts and tokens of each profile, from that of the shortest texts on.
        self._profiles = [tuple(largest) for _, _, largest in shapes]
        self._profile = 0
        texts = max(texts for texts, _ in self._profiles)
        tokens = max(texts * tokens for texts, tokens in self._profiles)
        self._stream = _checked(cuda.cudaStreamCreate())
        self._memory = {name: _checked(cuda.cudaMalloc(tokens * _ID_BYTES)) for name in manifest.inputs}
        self._memory[_OUTPUT] = _checked(cuda.cudaMalloc(texts * manifest.dimensions * _VALUE_BYTES))

    def padded_length(self, tokens: int) -> int:
        return padded_length(tokens, self._manifest.max_seq_len)

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        arrays = model_inputs(texts, self._manifest)
        rows = np.empty((len(texts), self._manifest.dimensions), np.float32)
        self._choose_profile(arrays[self._manifest.inputs[0]].shape)
        for name, array in arrays.items():
            if not self._context.set_input_shape(name, array.shape):
                raise RuntimeError(f"TensorRT accepts no input {name} of the shape {array.shape}")
            self._copy(self._memory[name], array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice")
        for name, address in self._memory.items():
            self._context.set_tensor_address(name, int(address))
        if not self._context.execute_async_v3(int(self._stream)):
            raise RuntimeError(f"TensorRT failed on {len(texts)} texts; its log says why")
        self._copy(rows.ctypes.data, self._memory[_OUTPUT], rows.nbytes, "cudaMemcpyDeviceToHost")
        _checked(cuda.cudaStreamSynchronize(self._stream))
        return rows

    def _choose_profile(self, shape: tuple[int, ...]) -> None:
        profile = next(number for number, (_, longest) in enumerate(self._profiles) if shape[1] <= longest)
        if profile != self._profile:
            self._context.set_optimization_profile_async(profile, int(self._stream))
            self._profile = profile

    def _copy(self, to: Any, source: Any, size: int, direction: str) -> None:
        kind = getattr(cuda.cudaMemcpyKind, direction)
        _checked(cuda.cudaMemcpyAsync(to, source, size, kind, self._stream))


def load_encoders(
    engine_dir: str, manifest: EncoderDescription, threads: int, requests: int, limits: PlannerLimits
) -> list[TensorRtEncoder]:
    """Load the plan and return its execution contexts, which share the weights. `threads` has no effect.

    Raises ValueError for micro-batches that the plan is not for, and if another GPU or TensorRT built it; RuntimeError
    if the GPU has too little memory.
    """
    _check_limits(engine_dir, manifest, limits)
    plan = (Path(engine_dir) / _FILE).read_bytes()
    engine = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.WARNING)).deserialize_cuda_engine(plan)
    if engine is None:
        raise ValueError(
            f"TensorRT {tensorrt.__version__} can't load {engine_dir}, which TensorRT {manifest.versions['tensorrt']}"
            f" built for GPUs of compute capability {manifest.compute_capability}; build the engine again here"
        )
    return [TensorRtEncoder(engine, manifest) for _ in range(requests)]


def _check_limits(engine_dir: str, manifest: EncoderDescription, limits: PlannerLimits) -> None:
    for name, asked in (("max_batch_tokens", limits.max_batch_tokens), ("max_batch_texts", limits.max_batch_texts)):
        if asked > manifest.limits[name]:
            raise ValueError(
                f"{name} is {asked}, and {engine_dir} was built for {manifest.limits[name]} at most; lower it, or"
                " build the engine again"
            )


def _checked(result: Any) -> Any:
    """Return the value of a call of CUDA, which is an error code and a value, if any. Raises RuntimeError."""
    error, *values = result
    if error != cuda.cudaError_t.cudaSuccess:
        raise RuntimeError(f"CUDA fails with {cuda.cudaGetErrorString(error)[1].decode()}")
    return values[0] if values else None
