"""Tensors as KServe's bytes, which gRPC and the binary extension of HTTP share.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inflight_client.errors import InflightError
from inflight_client.transport import Tensor

if TYPE_CHECKING:
    from inflight_client.transport import Array

CODES = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""KServe's types as `struct` and numpy name them; all little-endian on the wire."""

_LENGTH = struct.Struct("<i")


def tensor_to_bytes(name: str, tensor: Tensor) -> bytes:
    """Return the contents of an input. Raises InflightError for values that do not fit their tensor."""
    if isinstance(tensor.values, bytes):
        return tensor.values
    if tensor.datatype == "BYTES":
        return b"".join(_text(name, value) for value in tensor.values)
    try:
        return struct.pack(f"<{len(tensor.values)}{CODES[tensor.datatype]}", *tensor.values)
    except (struct.error, OverflowError) as error:
        raise InflightError(f"{name} can't be sent as {tensor.datatype}: {error}", "invalid_parameter") from None


def _text(name: str, value: str) -> bytes:
    try:
        text = value.encode()
    except UnicodeEncodeError as error:
        raise InflightError(f"{name} can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
    return _LENGTH.pack(len(text)) + text


def bytes_to_array(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    """Return numbers or booleans in their shape, without a copy. Raises InflightError `answer_damaged`."""
    import numpy

    if datatype not in CODES:
        raise damaged_output(name, f"the type {datatype or 'nothing'}")
    kind = numpy.dtype(f"<{numpy.dtype(CODES[datatype]).str[1:]}")
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise damaged_output(name, f"{len(raw)} bytes for {list(shape)} of {datatype}")
    array: Array = numpy.frombuffer(raw, kind).reshape(tuple(shape))
    return array


def bytes_to_texts(name: str, raw: bytes, limit: int | None = None) -> tuple[str, ...]:
    """Return the strings of a BYTES output, the first `limit` of them. Raises InflightError `answer_damaged`."""
    texts: list[str] = []
    start, size = 0, len(raw)
    while start < size and len(texts) != limit:
        end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        if end > size:
            raise damaged_output(name, f"{size - start} bytes for a text of {end - start - 4}")
        try:
            texts.append(raw[start + 4 : end].decode())
        except UnicodeDecodeError as error:
            raise damaged_output(name, f"no UTF-8, {error.reason}") from None
        start = end
    return tuple(texts)


def damaged_output(name: str, what: str) -> InflightError:
    return InflightError(f"the output {name} can't be read: it holds {what}; send the request again", "answer_damaged")
