"""Pads the texts of a micro-batch to arrays, for engines whose inputs have a row for each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.runtime.encoders.batch_planner import padded_length
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription


def model_inputs(texts: Sequence[EncoderInput], manifest: EncoderDescription) -> dict[str, Any]:
    """Return the graph's inputs, int64 [texts, padded length of the longest], padded on the manifest's side.

    Positions count a text's own tokens from 0, as if it were not padded.
    """
    lengths = [len(text.token_ids) for text in texts]
    shape = len(texts), padded_length(max(lengths), manifest.max_seq_len)
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
