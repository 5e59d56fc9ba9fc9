"""The part of peers.py that runs in the peer's own environment: reads lists of texts as JSON lines, and answers with
the seconds that each list took."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

Encode = Callable[[list[str]], Any]
_WARM_UP = ["a few words", "some more words " * 20, "many words " * 100] * 32


def sentence_transformers(checkpoint: str, precision: str) -> Encode:
    """Return `encode` of the OpenVINO backend, which sorts its list by length and computes batches of 32."""
    library: Any = importlib.import_module("sentence_transformers")
    config = {"INFERENCE_PRECISION_HINT": "f32" if precision == "fp32" else "bf16"}
    model = library.SentenceTransformer(checkpoint, backend="openvino", model_kwargs={"ov_config": config})
    return lambda texts: model.encode(texts, batch_size=32, show_progress_bar=False)


def vllm(checkpoint: str, precision: str) -> Encode:
    """Return `embed` of a pooling model, with vLLM's own limits of a batch."""
    library: Any = importlib.import_module("vllm")
    dtype = "float32" if precision == "fp32" else "bfloat16"
    model = library.LLM(model=checkpoint, runner="pooling", dtype=dtype, max_model_len=512)

    def encode(texts: list[str]) -> Any:
        return [output.outputs.embedding for output in model.embed(texts, use_tqdm=False)]

    return encode


def main(kind: str, checkpoint: str, precision: str) -> None:
    makers = {"sentence-transformers": sentence_transformers, "vllm": vllm}
    encode = makers[kind](checkpoint, precision)
    encode(_WARM_UP)
    print("answer", json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.perf_counter()
        encode(texts)
        print("answer", time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
