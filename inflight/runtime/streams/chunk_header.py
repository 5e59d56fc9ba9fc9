"""What the engine's model tells postprocessing about a chunk, in one tensor.

Each tensor of a response costs about 60 microseconds of processor time on its way through Triton's processes, and a
response is sent for each stream and step. So what goes with a chunk travels together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inflight.runtime.messages import RequestError

_FIXED_VALUES = 4
_MAX_VALUES = 64
"""More than any engine's model sends, whatever its version."""
_HALF = 2**32
_SEQUENCE_KEYS = 2**48
"""Stream keys of the answers to one request lie so far apart: more than any answer has chunks."""


def sequence_key(key: int, sequence: int) -> int:
    """The stream key of an answer to a prompt with that key, counted from 0; 0 where the prompt has none."""
    return key and (key + sequence * _SEQUENCE_KEYS) % 2**64


class ChunkHeader(NamedTuple):
    """The tensor `chunk_header`, INT32 [4 + context]: the key's halves, `following`, `dropped_characters`, and
    the context's ids.

    `key` is the number by which postprocessing acknowledges the chunk; 0 with the last one, which needs no receipt.
    `following` is how many more chunks the same engine step has made: they come right after this one.
    `dropped_characters` is how many characters at the end of the chunk's text belong to a stop word. `context_ids` are
    the tokens before the chunk.
    """

    key: int
    following: int = 0
    dropped_characters: int = 0
    context_ids: Sequence[int] = ()

    def to_tensor(self) -> Any:
        """An array [1, 4 + context] of INT32."""
        halves = np.array([self.key % _HALF, self.key // _HALF], dtype=np.uint32).view(np.int32).tolist()
        return np.array([[*halves, self.following, self.dropped_characters, *self.context_ids]], dtype=np.int32)

    @classmethod
    def from_row(cls, row: Any) -> ChunkHeader:
        """Read one row of the tensor; RequestError (`invalid_request`) for what no engine's model sends."""
        if not _FIXED_VALUES <= row.size <= _MAX_VALUES or row[2:].min() < 0:
            raise RequestError("CHUNK_HEADER is not what the engine's model sends; leave it out", "invalid_request")
        values = row.tolist()
        key = (values[0] % _HALF) + (values[1] % _HALF) * _HALF
        return cls(key, values[2], values[3], values[_FIXED_VALUES:])
