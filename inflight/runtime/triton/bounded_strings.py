"""Keeps a request that holds millions of strings from being turned into as many objects before a model sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from inflight.runtime.triton.word_tensors import MAX_WORDS

MAX_STRINGS = 64 * MAX_WORDS
"""In one tensor: the most words of each prompt of the largest batch."""


class _Unread(np.ndarray[Any, Any]):
    """Stands for a tensor that holds too much: has its shape, and one element in all places."""

    def reshape(self, *shape: Any, **_: Any) -> Any:
        return np.broadcast_to(np.array(b"", dtype=np.object_), *shape)


def decode_strings(encoded: Any) -> Any:
    """The strings of a tensor as Triton encodes them, each behind its length in four bytes.

    Beyond MAX_STRINGS nothing more is read: what is returned then only takes the tensor's shape.
    """
    raw = encoded.tobytes()
    found: list[bytes] = []
    start = 0
    while start < len(raw):
        if len(found) == MAX_STRINGS:
            return np.empty(0, dtype=np.object_).view(_Unread)
        text = start + 4
        start = text + int.from_bytes(raw[start:text], "little")
        found.append(raw[text:start])
    return np.array(found, dtype=np.object_)


def bound_strings(module: Any) -> None:
    """Have Triton's `module` (triton_python_backend_utils) decode the strings of requests by `decode_strings`.

    Its stub decodes all inputs before it calls a model, with the interpreter lock held. `Inputs` refuses what was not
    read.
    """
    module.deserialize_bytes_tensor = decode_strings
