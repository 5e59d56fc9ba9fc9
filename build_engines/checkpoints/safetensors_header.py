"""Checks the header of a safetensors file against the file's size.

Layout: 8 bytes with the header's length (little-endian), the header as JSON, then the tensors' bytes; each tensor
has its place in `data_offsets`, counted from the header's end (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, damaged

# The limit of the format, so that a garbled length is not read as gigabytes of header.
_MAX_HEADER_BYTES = 100_000_000
# torch's limit, so that thousands of huge lengths are not multiplied.
_MAX_DIMENSIONS = 64


def check_safetensors(path: Path) -> dict[str, int]:
    """Return the tensors of `path`, each with its number of elements.

    Raises BuildError (`checkpoint_damaged`) unless header and file match to the byte.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise _damaged(path, f"its header doesn't fit into its {size:,} bytes")
        try:
            header = json.loads(file.read(length))
            tensors = {name: _place(entry) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _damaged(path, "its header is garbled") from error
    end = 8 + length + max((stop for stop, _ in tensors.values()), default=0)
    if size < end:
        raise _damaged(path, f"it is cut off: {size:,} bytes where its header says {end:,}")
    if size > end:
        raise _damaged(path, f"it has {size:,} bytes where its header says {end:,}")
    return {name: elements for name, (_, elements) in tensors.items()}


def _place(entry: dict[str, Any]) -> tuple[int, int]:
    """Return where a tensor ends, and how many elements it has."""
    start, stop = entry["data_offsets"]
    shape = [int(length) for length in entry["shape"]]
    if not 0 <= start <= stop:
        raise ValueError(f"offsets {start}, {stop}")
    if len(shape) > _MAX_DIMENSIONS or not all(0 <= length < 1 << 63 for length in shape):
        raise ValueError("not the shape of a tensor")
    return stop, math.prod(shape)


def _damaged(path: Path, what: str) -> BuildError:
    return damaged(f"{path} is damaged: {what}; fetch the checkpoint again.")
