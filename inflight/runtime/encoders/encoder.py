"""What an encoder computes: texts as token ids in, one row of numbers per text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """A text as token ids, special ones included: an int32 array. `type_ids` has a segment for each token, or is None
    for a text of one segment."""

    token_ids: Any
    type_ids: Any = None


class Encoder(Protocol):
    """A compiled graph and the memory for one forward pass at a time; each thread has its own."""

    def padded_length(self, tokens: int) -> int:
        """Return the length to which a micro-batch is padded whose longest text has so many tokens."""

    def run(self, texts: Sequence[EncoderInput]) -> Any:
        """Compute one micro-batch. Returns a float32 array [texts, dimensions]."""
