"""What an encoder computes: texts as token ids in, one row of numbers per text out."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.manifest import EncoderDescription

# Each module has `load_encoders`, an `EncoderLoader`, and is imported only for engines of its target.
BACKENDS = {
    "openvino": "inflight.runtime.backends.openvino.encoder",
    "llmapi": "inflight.runtime.backends.llmapi.encoder",
    "tensorrt": "inflight.runtime.backends.tensorrt.encoder",
}


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """A text as token ids, special ones included: an int32 array. `type_ids` has a segment for each token, or is None
    for a text of one segment."""

    token_ids: Any
    type_ids: Any = None


class Encoder(Protocol):
    """A compiled graph and the memory for one forward pass at a time; each thread has its own.

    A `packed` one computes the tokens of a micro-batch one after the other, without padding.
    """

    packed: bool

    def padded_length(self, tokens: int) -> int:
        """Return the length to which a micro-batch is padded whose longest text has so many tokens."""

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        """Compute one micro-batch. Returns a float32 array [texts, dimensions]."""


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
