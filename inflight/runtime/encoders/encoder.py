"""What an encoder computes: texts as token ids in, one row of numbers per text out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.batch_runner import BatchEngine, not_computed
from inflight.runtime.encoders.manifest import EncoderDescription, Seq2SeqDescription

# Each module has `load_encoders`, an `EncoderLoader`, and is imported only for engines of its target.
BACKENDS = {
    "openvino": "inflight.runtime.backends.openvino.encoder",
    "llmapi": "inflight.runtime.backends.llmapi.encoder",
    "tensorrt": "inflight.runtime.backends.tensorrt.encoder",
}
_SEQ2SEQ_BACKEND = "inflight.runtime.backends.ctranslate2.engine"


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """A text as token ids, special ones included: an int32 array. `type_ids` has a segment for each token, or is None
    for a text of one segment."""

    token_ids: Any
    type_ids: Any = None

    @property
    def size(self) -> int:
        return len(self.token_ids)

    @property
    def group(self) -> None:
        return None


class Encoder(Protocol):
    """A compiled graph and the memory for one forward pass at a time; each thread has its own.

    A `packed` one computes the tokens of a micro-batch one after the other, without padding.
    """

    packed: bool

    def padded_length(self, tokens: int) -> int:
        """Return the length to which a micro-batch is padded whose longest text has so many tokens."""

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        """Compute one micro-batch. Returns a float32 array [texts, dimensions]."""


class EncoderEngine:
    """Computes the rows of texts with an encoder; a row with a number that is not finite is an error of its text."""

    noun = "text"

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.packed, self.padded_length = encoder.packed, encoder.padded_length

    def run(self, inputs: Sequence[EncoderInput]) -> Sequence[Any]:
        rows = np.asarray(self._encoder.run(inputs), dtype=np.float32)
        finite = np.isfinite(rows.reshape(len(inputs), -1)).all(axis=1).tolist()
        return [
            row if good else not_computed(self.noun, "its values are not finite")
            for row, good in zip(rows, finite, strict=True)
        ]

    def close(self) -> None:
        """Do nothing: an encoder ends with its process."""


class EncoderLoader(Protocol):
    def __call__(
        self, engine_dir: str, manifest: EncoderDescription, threads: int, requests: int, limits: PlannerLimits
    ) -> Sequence[Encoder]:
        """Load an engine and return its encoders, `requests` of them if the library can compute several micro-batches
        at a time; they share `threads` threads, 0 for the library's choice. Raises ValueError or RuntimeError."""


def find_loader(target: str) -> EncoderLoader:
    """Return what loads encoders of the target. Raises ValueError for an unknown one."""
    if target not in BACKENDS:
        raise ValueError(f"there are no encoders for {target}; choose one of {', '.join(BACKENDS)}")
    return cast(EncoderLoader, importlib.import_module(BACKENDS[target]).load_encoders)


def load_engines(
    engine_dir: str,
    manifest: EncoderDescription | Seq2SeqDescription,
    threads: int,
    requests: int,
    limits: PlannerLimits,
    report: Callable[[str], None],
) -> Sequence[BatchEngine]:
    """Load an engine of any task as often as it can compute micro-batches at a time, and try it.

    Raises ValueError or RuntimeError if that fails.
    """
    if isinstance(manifest, Seq2SeqDescription):
        module = importlib.import_module(_SEQ2SEQ_BACKEND)
        return cast(Sequence[BatchEngine], module.load_engines(engine_dir, manifest, threads, requests, report))
    encoders = find_loader(manifest.target)(engine_dir, manifest, threads, requests, limits)
    # A full micro-batch shows whether the engine works, and allocates memory that it would otherwise need later.
    longest = min(limits.max_batch_tokens, manifest.max_seq_len)
    full = [EncoderInput([manifest.pad_id] * longest)] * min(limits.max_batch_tokens // longest, limits.max_batch_texts)
    for encoder in encoders:
        encoder.run(full)
    return [EncoderEngine(encoder) for encoder in encoders]
