"""The engine of an encoder alone, without a server, as a script calls it that knows no more than OpenVINO's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from tokenizers import Tokenizer

from build_engines.manifest import EncoderManifest

Vectors = NDArray[np.float32]


class EngineLoop:
    """Computes texts in the batches that the caller chooses: a batch is tokenized, padded to its longest text, and
    computed by one infer request that uses all cores."""

    def __init__(self, engine: Path) -> None:
        manifest = EncoderManifest.read(engine)
        self.dimensions = manifest.dimensions
        self._inputs = manifest.inputs
        self._tokenizer = Tokenizer.from_file(str(engine / "tokenizer.json"))
        self._tokenizer.enable_truncation(manifest.max_seq_len)
        self._tokenizer.no_padding()
        precision = "f32" if manifest.precision == "fp32" else "bf16" if manifest.precision == "bf16" else "f32"
        properties = {"INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": 1}
        compiled = ov.Core().compile_model(engine / "openvino_model.xml", "CPU", properties)
        self._request = compiled.create_infer_request()
        self.real_tokens = self.padded_tokens = 0
        """Tokens of all texts so far, and positions that were computed for them."""

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def compute(self, batch: Sequence[Sequence[int]]) -> Vectors:
        """Return the vectors of one batch, given as token ids."""
        longest = max(map(len, batch))
        ids = np.zeros((len(batch), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(batch):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        self.real_tokens += sum(map(len, batch))
        self.padded_tokens += ids.size
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        self._request.infer({name: ov.Tensor(values[name]) for name in self._inputs})
        vectors: Vectors = self._request.get_output_tensor(0).data.copy()
        return vectors

    def in_order(self, texts: Sequence[str], size: int) -> Vectors:
        """Return the vectors of texts in batches of `size` in the order of the list."""
        parts = [self.compute(self.tokenize(texts[at : at + size])) for at in range(0, len(texts), size)]
        return np.concatenate(parts)

    def sorted_by_length(self, texts: Sequence[str], budget: int) -> Vectors:
        """Return the vectors of texts that are all tokenized first and sorted by length, in batches of at most
        `budget` padded tokens: what an offline job can do that has the whole corpus."""
        ids = self.tokenize(texts)
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        for rows in _by_budget(ids, budget):
            vectors[rows] = self.compute([ids[row] for row in rows])
        return vectors


def _by_budget(ids: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Yield rows in order of length, longest first, so that the first text of a batch is its longest."""
    rows: list[int] = []
    for row in sorted(range(len(ids)), key=lambda row: -len(ids[row])):
        if rows and len(ids[rows[0]]) * (len(rows) + 1) > budget:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
