"""Limits how many strings of a request are decoded to objects before a model sees the request."""

from __future__ import annotations

from typing import Any

import numpy as np

from inflight.runtime.triton.word_tensors import MAX_WORDS

MAX_STRINGS = 64 * MAX_WORDS
"""Limit of one tensor: the most words of each prompt of the largest batch."""


class _Unread(np.ndarray[Any, Any]):
    """A placeholder for a tensor with too many strings: it has the tensor's shape, and one element in all places."""

    def reshape(self, *shape: Any, **_: Any) -> Any:
        return np.broadcast_to(np.array(b"", dtype=np.object_), *shape)


def decode_strings(encoded: Any) -> Any:
    """Decode the strings of a tensor in Triton's encoding: a length of four bytes before each string.

    Beyond MAX_STRINGS, decoding stops and the result can only be reshaped to the tensor's shape.
    """
    raw = encoded.tobytes()
    texts: list[bytes] = []
    start = 0
    while start < len(raw):
        if len(texts) == MAX_STRINGS:
            return np.empty(0, dtype=np.object_).view(_Unread)
        text = start + 4
        start = text + int.from_bytes(raw[start:text], "little")
        texts.append(raw[text:start])
    return np.array(texts, dtype=np.object_)


def bound_strings(module: Any) -> None:
    """Make Triton's `module` (triton_python_backend_utils) decode the strings of requests with `decode_strings`.

    Its stub decodes all inputs before it calls a model, with the interpreter lock held. `Inputs` refuses placeholders.
    """
    module.deserialize_bytes_tensor = decode_strings
