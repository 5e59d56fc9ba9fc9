"""What the engine's model sends to postprocessing with a chunk, in one tensor.

Each tensor of a response costs about 60 microseconds of processor time on its way through Triton's processes, and each
stream and step sends a response, so all values of a chunk share one tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inflight.common.request_error import RequestError

_FIXED_VALUES = 4
_MAX_VALUES = 64
"""More than any engine's model sends, in any version."""
_KEY, _HALVES = struct.Struct("<Q"), struct.Struct("<2i")
_SEQUENCE_KEYS = 2**48
"""Distance between the stream keys of the answers to one request: more than the chunks of any answer."""


def sequence_key(key: int, sequence: int) -> int:
    """Return the stream key of an answer, counted from 0, to a prompt with that key; 0 if the prompt has no key."""
    return key and (key + sequence * _SEQUENCE_KEYS) % 2**64


class ChunkHeader(NamedTuple):
    """The tensor `chunk_header`, INT32 [4 + context]: two halves of `key`, then the other fields.

    `key` is the number with which postprocessing acknowledges the chunk; 0 in the last chunk, which is not
    acknowledged. `following` is how many more chunks the same engine step made, which come right after this one.
    `dropped_characters` is how many characters at the end of the chunk's text belong to a stop word. `context_ids` are
    the tokens before the chunk.
    """

    key: int
    following: int = 0
    dropped_characters: int = 0
    context_ids: Sequence[int] = ()

    def to_tensor(self) -> Any:
        """Return an array [1, 4 + context] of INT32."""
        halves = _HALVES.unpack(_KEY.pack(self.key))
        return np.array([[*halves, self.following, self.dropped_characters, *self.context_ids]], dtype=np.int32)

    @classmethod
    def from_row(cls, row: Any) -> ChunkHeader:
        """Read one row of the tensor. Raises RequestError (`invalid_request`) for invalid values."""
        values = row.tolist() if _FIXED_VALUES <= row.size <= _MAX_VALUES else [-1] * _FIXED_VALUES
        if min(values[2:]) < 0:
            raise RequestError("CHUNK_HEADER is not what the engine's model sends; leave it out", "invalid_request")
        (key,) = _KEY.unpack(_HALVES.pack(*values[:2]))
        return cls(key, values[2], values[3], values[_FIXED_VALUES:])
