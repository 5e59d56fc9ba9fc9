"""Runs an encoder with `encode` of TensorRT-LLM's LLM API, which packs the texts of a micro-batch without padding."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inflight.runtime.backends.llmapi.library import ENCODING_PLACE, LlmApiLibrary, device_tensor
from inflight.runtime.backends.llmapi.settings import CHECKPOINT, MODEL_FILE, read_arguments
from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription

_SMALLEST_NORM = 1e-12


class LlmApiEncoder:
    """An LLM that only encodes. Its buffers are for one call at a time."""

    packed = True

    def __init__(self, llm: Any, manifest: EncoderDescription) -> None:
        self._llm = llm
        self._manifest = manifest
        self._with_types = "token_type_ids" in manifest.inputs
        # Later versions return all rows as one tensor, which is one copy from the GPU.
        self._raw = "return_raw_logits" in inspect.signature(llm.encode).parameters

    def padded_length(self, tokens: int) -> int:
        return tokens

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        lengths = [len(text.token_ids) for text in texts]
        keywords: dict[str, Any] = {"return_raw_logits": True} if self._raw else {}
        if self._with_types:
            keywords["token_type_ids"] = device_tensor(np.concatenate([_types(text) for text in texts]))
        outputs = self._llm.encode([np.asarray(text.token_ids).tolist() for text in texts], **keywords)
        rows = (
            _array(outputs) if self._raw else np.concatenate([np.atleast_2d(_array(each.logits)) for each in outputs])
        )
        rows = self._pooled(rows, lengths)
        if self._manifest.normalize:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _SMALLEST_NORM)
        return rows

    def _pooled(self, rows: Any, lengths: Sequence[int]) -> Any:
        """Return one row for each text: the model's, or that of the last token if it has one for each token.

        NVIDIA's documentation says neither of Qwen3ForTextEmbedding, so both are accepted.
        """
        if rows.ndim == 2 and rows.shape[1] == self._manifest.dimensions:
            if len(rows) == len(lengths):
                return rows
            if len(rows) == sum(lengths) and self._manifest.task == "embed":
                return rows[np.cumsum(lengths) - 1]
        raise RuntimeError(
            f"TensorRT-LLM returned values of the shape {rows.shape} for {len(lengths)} texts, and the engine has "
            f"{self._manifest.dimensions} for each; serve it with another version, or build it with --target tensorrt"
        )


def load_encoders(
    engine_dir: str, manifest: EncoderDescription, threads: int, requests: int, limits: PlannerLimits
) -> list[LlmApiEncoder]:
    """Load the checkpoint; `threads` has no effect. Raises ValueError for several requests, and RuntimeError for a
    version of TensorRT-LLM without `encode`; the library's errors pass through."""
    if requests != 1:
        raise ValueError(f"num_requests is {requests}, and TensorRT-LLM encodes one micro-batch at a time; set it to 1")
    directory = Path(engine_dir)
    sizes = {
        "max_batch_size": limits.max_batch_texts,
        "max_num_tokens": max(limits.max_batch_tokens, manifest.max_seq_len),
    }
    arguments = {**read_arguments(directory / MODEL_FILE), **sizes}
    llm = LlmApiLibrary.load(ENCODING_PLACE).create_encoder(str(directory / CHECKPOINT), arguments)
    return [LlmApiEncoder(llm, manifest)]


def _array(tensor: Any) -> Any:
    return tensor.float().cpu().numpy()


def _types(text: EncoderInput) -> Any:
    return np.zeros(len(text.token_ids), np.int32) if text.type_ids is None else np.asarray(text.type_ids, np.int32)
