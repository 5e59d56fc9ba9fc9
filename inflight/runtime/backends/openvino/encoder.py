"""Runs an encoder's graph with OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino

from inflight.runtime.encoders.batch_planner import PlannerLimits, padded_length
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.padding import model_inputs

_FILE = "openvino_model.xml"
_CACHED_KERNELS = 256
"""Kernels are made for each shape. OpenVINO keeps up to 5,000 of them by default, and memory grows until then: by half
a MiB with each shape of a small model."""


class OpenVinoEncoder:
    """One infer request of a compiled graph."""

    packed = False

    def __init__(self, request: Any, manifest: EncoderDescription) -> None:
        self._request = request
        self._manifest = manifest

    def padded_length(self, tokens: int) -> int:
        return padded_length(tokens, self._manifest.max_seq_len)

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        arrays = model_inputs(texts, self._manifest)
        # Without sharing, OpenVINO copies the inputs into tensors of an earlier, possibly smaller shape, and fails.
        return self._request.infer(arrays, share_inputs=True)[0]


def load_encoders(
    engine_dir: str, manifest: EncoderDescription, threads: int, requests: int, limits: PlannerLimits
) -> list[OpenVinoEncoder]:
    """Compile the graph and return its infer requests, which share `threads` threads; 0 means one for each core."""
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": str(requests),
        "CPU_RUNTIME_CACHE_CAPACITY": _CACHED_KERNELS,
        **({"INFERENCE_NUM_THREADS": threads} if threads else {}),
        **manifest.properties,
    }
    model = openvino.Core().compile_model(str(Path(engine_dir) / _FILE), "CPU", properties)
    names = {name for port in model.inputs for name in port.get_names()}
    if missing := set(manifest.inputs) - names:
        raise ValueError(f"the graph of {engine_dir} has no input {', '.join(sorted(missing))}; build the engine again")
    return [OpenVinoEncoder(model.create_infer_request(), manifest) for _ in range(requests)]
