"""Computes the numbers of a GGUF file's quantized tensors and writes them as safetensors, a few rows at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from build_engines.errors import unsupported
from build_engines.gguf.header import GgufFile, GgufTensor, Weight

_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# Numbers that are computed at once, unless heads are reordered.
_CHUNK = 1 << 22


def check_quantizations(file: GgufFile) -> None:
    """Raise BuildError (`unsupported_architecture`) for a quantization whose numbers can't be computed."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    for kind in {tensor.kind for tensor in file.tensors.values()}:
        named = GGMLQuantizationType(kind)
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[named][1]), np.uint8), named)
        except NotImplementedError:
            raise unsupported(
                f"{file.path} has tensors in {named.name}, which can't be read; choose a file with another"
                " quantization, such as Q8_0 or Q4_K_M."
            ) from None


def write_weights(
    file: GgufFile,
    weights: list[Weight],
    heads: tuple[int, int],
    path: Path,
    dtype: str,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write `weights` to the safetensors file `path` as `dtype` (F32, F16 or BF16).

    `heads` are the numbers of heads of queries and of keys; `on_progress(done, total)` gets numbers of elements.
    """
    total, end, entries = 0, 0, {}
    for weight in weights:
        size = int(np.prod(weight.shape))
        start, end, total = end, end + size * _BYTES[dtype], total + size
        entries[weight.name] = {"dtype": dtype, "shape": weight.shape, "data_offsets": (start, end)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    done = 0
    with path.open("wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for weight in weights:
            for numbers in _changed(file, weight, heads):
                _write(out, numbers, dtype)
                done += numbers.size
                on_progress(done, total)


def read_numbers(file: GgufFile, tensor: GgufTensor) -> list[float]:
    """Return all numbers of a small tensor."""
    return [float(value) for rows in _rows(file, tensor) for value in rows.ravel()]


def _changed(file: GgufFile, weight: Weight, heads: tuple[int, int]) -> Iterable[Any]:
    rows = _rows(file, weight.source, weight.expert)
    if weight.change == "none":
        return rows
    whole = np.concatenate(list(rows))
    if weight.change == "minus_one":
        return [whole - np.float32(1)]
    count = heads[weight.change == "k_heads"]
    if weight.shape[0] % (2 * count):
        raise file.damaged(f"the rows of {weight.name} are not shared evenly by {count} heads")
    whole = whole.reshape(count, weight.shape[0] // count // 2, 2, -1)
    return [whole.swapaxes(1, 2)]


def _rows(file: GgufFile, tensor: GgufTensor, expert: int | None = None) -> Iterator[Any]:
    """Yield the numbers of a tensor, or of one expert's part of it, as float32 of some rows."""
    from gguf import GGMLQuantizationType, dequantize

    length = tensor.shape[-1]
    count = tensor.elements // length
    data: Any = np.memmap(file.path, np.uint8, "r", tensor.start, (count, tensor.bytes // count))
    if expert is not None:
        each = count // tensor.shape[0]
        data = data[expert * each : (expert + 1) * each]
    step = max(_CHUNK // length, 1)
    for first in range(0, len(data), step):
        yield dequantize(np.ascontiguousarray(data[first : first + step]), GGMLQuantizationType(tensor.kind))


def _write(out: IO[bytes], numbers: Any, dtype: str) -> None:
    from gguf import GGMLQuantizationType, quantize

    out.write(quantize(np.ascontiguousarray(numbers, np.float32), GGMLQuantizationType[dtype]).data)
