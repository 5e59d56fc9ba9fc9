"""Runs an encoder's graph with OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderManifest

_FILE = "openvino_model.xml"
_CACHED_KERNELS = 256
"""Kernels are made for each shape. OpenVINO keeps up to 5,000 of them by default, and memory grows until then."""


class OpenVinoEncoder:
    """One infer request of a compiled graph."""

    def __init__(self, request: Any, manifest: EncoderManifest) -> None:
        self._request = request
        self._manifest = manifest

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        arrays = model_inputs(texts, self._manifest)
        # Without sharing, OpenVINO copies the inputs into tensors of an earlier, possibly smaller shape, and fails.
        return self._request.infer(arrays, share_inputs=True)[0]


def load_encoders(engine_dir: str, manifest: EncoderManifest, threads: int, requests: int) -> list[OpenVinoEncoder]:
    """Compile the graph and return its infer requests, which share `threads` threads; 0 means one for each core."""
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": str(requests),
        "CPU_RUNTIME_CACHE_CAPACITY": _CACHED_KERNELS,
        **({"INFERENCE_NUM_THREADS": threads} if threads else {}),
        **manifest.properties,
    }
    model = openvino.Core().compile_model(str(Path(engine_dir) / _FILE), "CPU", properties)
    names = {name for given in model.inputs for name in given.get_names()}
    if missing := set(manifest.inputs) - names:
        raise ValueError(f"the graph of {engine_dir} has no input {', '.join(sorted(missing))}; build the engine again")
    return [OpenVinoEncoder(model.create_infer_request(), manifest) for _ in range(requests)]


def model_inputs(texts: Sequence[EncoderInput], manifest: EncoderManifest) -> dict[str, Any]:
    """Return the graph's inputs, int64 [texts, longest], padded on the manifest's side.

    Positions count a text's own tokens from 0, as if it were not padded.
    """
    lengths = [len(text.token_ids) for text in texts]
    shape = len(texts), max(lengths)
    ids = np.full(shape, manifest.pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    types = np.zeros(shape, dtype=np.int64)
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        place = slice(shape[1] - length, None) if manifest.padding_side == "left" else slice(length)
        ids[row, place] = text.token_ids
        mask[row, place] = 1
        if text.type_ids is not None:
            types[row, place] = text.type_ids
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    if "position_ids" in manifest.inputs:
        arrays["position_ids"] = np.maximum(mask.cumsum(axis=1) - 1, 0)
    return {name: arrays[name] for name in manifest.inputs}
