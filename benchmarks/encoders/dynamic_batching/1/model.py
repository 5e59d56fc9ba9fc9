"""An encoder as Triton's examples have it: one forward pass for whatever batch Triton formed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks.encoders.engine_loop import EngineLoop
from inflight.common.cpu_affinity import use_engine_cores


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        use_engine_cores()
        self._loop = EngineLoop(Path(os.environ["ENGINE"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        texts = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
        ids = self._loop.tokenize([text.decode() for text in np.concatenate(texts)[:, 0]])
        padded = np.full((len(ids), 1), max(map(len, ids)), np.int32)
        outputs = {"embedding": self._loop.compute(ids), "padded_tokens": padded}
        ends = np.cumsum([len(request_texts) for request_texts in texts])
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, rows[end - len(request_texts) : end]) for name, rows in outputs.items()]
            )
            for request_texts, end in zip(texts, ends.tolist(), strict=True)
        ]
