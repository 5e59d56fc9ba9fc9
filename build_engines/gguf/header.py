"""Reads the header of a GGUF file: its metadata and the places of its tensors, checked against the file's size.

Layout, little-endian: magic, version, number of tensors, number of metadata; each of the metadata as key, type, value;
each tensor as name, dimensions, type, offset; then, aligned, the tensors' bytes
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from build_engines.errors import BuildError, damaged, unsupported

Change = Literal["none", "q_heads", "k_heads", "minus_one"]
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Those of today's models, with their vocabularies, are below 20 MB.
_MAX_HEADER_BYTES = 1 << 28
_MAX_DIMENSIONS = 4
_ALIGNMENT = 32


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is in the file: `shape` as in torch, the `kind` of its numbers as `gguf` numbers them."""

    shape: tuple[int, ...]
    kind: int
    start: int
    bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """The header of a file; `metadata` has scalars, strings, and lists of either."""

    path: Path
    metadata: dict[str, Any] = field(repr=False)
    tensors: dict[str, GgufTensor] = field(repr=False)

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor has numbers of fewer bits than 16."""
        return any(tensor.bytes < 2 * tensor.elements for tensor in self.tensors.values())

    @property
    def family(self) -> str:
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """Return the string `key`. Raises BuildError (`checkpoint_damaged`), as the others do, for anything else."""
        return str(self._typed(key, str, "a string"))

    def number(self, key: str, default: float | None = None) -> int | float:
        """Return the number `key` that is not negative."""
        value = self._typed(key, (int, float), "a number", default)
        if isinstance(value, bool) or not 0 <= value < math.inf:
            raise self.damaged(f"{key} must be a number that is not negative")
        return value  # type: ignore[no-any-return]

    def whole(self, key: str, default: int | None = None, least: int = 0, most: int = 10**9) -> int:
        value = self.number(key, default)
        if not isinstance(value, int) or not least <= value <= most:
            raise self.damaged(f"{key} must be a whole number of {least} to {most:,}")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._typed(key, list, "a list")
        if not all(isinstance(each, str) for each in value):
            raise self.damaged(f"{key} must be a list of strings")
        return value  # type: ignore[no-any-return]

    def numbers(self, key: str, length: int) -> list[Any]:
        """Return the list of `length` numbers `key`."""
        value = self._typed(key, list, "a list")
        if len(value) != length or any(isinstance(each, str) for each in value):
            raise self.damaged(f"{key} must be a list of {length:,} numbers")
        return value  # type: ignore[no-any-return]

    def _typed(self, key: str, kind: type | tuple[type, ...], words: str, default: Any = None) -> Any:
        value = self.metadata.get(key, default)
        if not isinstance(value, kind):
            raise self.damaged(f"{key} must be {words}" if key in self.metadata else f"it has no {key}")
        return value

    def damaged(self, what: str) -> BuildError:
        return _damaged(self.path, what)


@dataclass(frozen=True)
class Weight:
    """A tensor of the checkpoint, from a tensor of the file that is changed; `expert` is one of its first dimension."""

    name: str
    shape: tuple[int, ...]
    source: GgufTensor
    change: Change = "none"
    expert: int | None = None


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a file that is named, or begins, like one in GGUF."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_gguf(path: Path) -> GgufFile:
    """Return the header of `path`, in about a second for a large vocabulary.

    Raises BuildError: `checkpoint_damaged` for a file that is garbled or cut off, `not_a_checkpoint` for another
    format or version, or a part of a split file, `unsupported_architecture` for a kind of numbers that can't be read.
    """
    if path.stat().st_size < len(_MAGIC):
        raise _damaged(path, f"it has {path.stat().st_size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Header(path, data).read()
        except UnicodeDecodeError as error:
            raise _damaged(path, "a name or a text in its header is not UTF-8") from error


class _Header:
    """Reads the parts of a header in their order; no length is believed before it fits into the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._size, self._place = path, data, len(data), 0

    def read(self) -> GgufFile:
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise BuildError(
                f"{self._path} does not begin like a GGUF file; fetch it again, or name a checkpoint.",
                "not_a_checkpoint",
            )
        self._place = len(_MAGIC)
        if (version := self._scalar("I")) not in _VERSIONS:
            big = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            what = "has big-endian numbers" if big else f"has version {version} of GGUF"
            raise BuildError(
                f"{self._path} {what}, and only little-endian files of the versions 2 and 3 can be read; fetch a newer"
                " file.",
                "not_a_checkpoint",
            )
        tensors, entries = self._count(4 + 4 + 8 + 8), self._count(8 + 4 + 1)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key, kind = self._string(), self._scalar("I")
            if key in metadata:
                raise self._damaged(f"its header has {key[:100]} twice")
            metadata[key] = self._value(kind)
        if (parts := metadata.get("split.count", 1)) != 1:
            raise BuildError(
                f"{self._path} is one of {parts} parts of a model; join them with `llama-gguf-split --merge` first.",
                "not_a_checkpoint",
            )
        header = [self._tensor() for _ in range(tensors)]
        return GgufFile(self._path, metadata, self._placed(header, metadata.get("general.alignment", _ALIGNMENT)))

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, count = self._string(), self._scalar("I")
        if count > _MAX_DIMENSIONS:
            raise self._damaged(f"the tensor {name[:100]} has {count} dimensions")
        shape = tuple(reversed(self._scalars("Q", count)))
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _placed(
        self, header: Collection[tuple[str, tuple[int, ...], int, int]], alignment: object
    ) -> dict[str, GgufTensor]:
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._damaged("general.alignment must be a number of bytes")
        start = -(-self._place // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in header:
            if name in tensors:
                raise self._damaged(f"it has the tensor {name[:100]} twice")
            block, size = _block(self._path, name, kind)
            if not shape or 0 in shape or shape[-1] % block:
                raise self._damaged(f"the tensor {name[:100]} has an impossible shape")
            tensors[name] = GgufTensor(shape, kind, start + offset, math.prod(shape) // block * size)
        end = max((tensor.start + tensor.bytes for tensor in tensors.values()), default=0)
        if end > self._size:
            raise self._damaged(f"it is cut off: {self._size:,} bytes where its header says {end:,}")
        return tensors

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise self._damaged(f"its header has a value of the unknown type {kind}")
        item = self._scalar("I")
        if item == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if item not in _SCALARS:
            raise self._damaged(f"its header has a list of the type {item}, which must be of numbers or strings")
        return list(self._scalars(_SCALARS[item], self._count(struct.calcsize(_SCALARS[item]))))

    def _string(self) -> str:
        length = self._count(1)
        return self._take(length).decode()

    def _count(self, least: int) -> int:
        """Return a number of items that have at least so many bytes each."""
        count = int(self._scalar("Q"))
        if count * least > self._left():
            raise self._damaged(f"its header doesn't fit into its {self._size:,} bytes")
        return count

    def _scalar(self, kind: str) -> Any:
        return self._scalars(kind, 1)[0]

    def _scalars(self, kind: str, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{kind}")
        return layout.unpack(self._take(layout.size))

    def _take(self, length: int) -> bytes:
        if length > self._left():
            raise self._damaged(f"its header doesn't fit into its {self._size:,} bytes")
        start, self._place = self._place, self._place + length
        return self._data[start : self._place]

    def _left(self) -> int:
        return min(self._size, _MAX_HEADER_BYTES) - self._place

    def _damaged(self, what: str) -> BuildError:
        return _damaged(self._path, what)


def _block(path: Path, name: str, kind: int) -> tuple[int, int]:
    """Return how many numbers a block of a tensor has, and how many bytes."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        return GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise unsupported(
            f"{path} has the tensor {name[:100]} in an unknown quantization (type {kind}); choose a file with another,"
            " such as Q8_0 or Q4_K_M."
        ) from None


def _damaged(path: Path, what: str) -> BuildError:
    return damaged(f"{path} is damaged: {what}; fetch it again.")
