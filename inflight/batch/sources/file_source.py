"""Common parts of sources of text in files."""

from __future__ import annotations

from typing import IO, Any, cast

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import Position
from inflight.batch.sources.interface import RowSource
from inflight.batch.storage.files import Reading, StoredFile

MAX_ROW_BYTES = 16 << 20
"""Maximum bytes of a row: far more than any model accepts, and little enough for memory."""
_OFFSET_INTERVAL = 1 << 20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class FileSource(RowSource):
    """A file of rows. Raises BatchError `input_not_found`, `input_invalid` if there are none.

    A position is the offset of the next row in the decompressed content, and the number of lines before it.
    """

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._size = file.size()
        if self._size == 0:
            raise BatchError(f"{file.shown} is empty; it needs at least one row", "input_invalid")
        self.fingerprint = file.fingerprint()
        self._read_so_far = (0, 0)
        self._next_offset_record = 0
        with file.reading() as reading:
            if reading.content.read(2) in _UTF16:
                raise BatchError(f"{file.shown} is in UTF-16; convert it to UTF-8", "input_invalid")

    def fraction_read(self, position: Position) -> float | None:
        inside, outside = self._read_so_far if self._file.compression else (1, 1)
        if not self._size or not inside:
            return None
        return min(1.0, offset_of(position)[0] * (outside / inside) / self._size)

    def _record_offset(self, reading: Reading, offset: int) -> None:
        """Record how many bytes of the file itself correspond to the offset; only needed for a compressed file."""
        self._read_so_far = (offset, reading.raw.tell() if self._file.compression else offset)
        self._next_offset_record = offset + _OFFSET_INTERVAL


def offset_of(position: Position | None) -> tuple[int, int]:
    """Return offset and lines of a position; the start for None."""
    if position is None:
        return 0, 0
    offset, lines = cast("tuple[Any, Any]", position)
    return int(offset), int(lines)


def skip_line(file: IO[bytes]) -> int:
    """Read to the end of the line; return the number of bytes."""
    skipped = 0
    while data := file.readline(_OFFSET_INTERVAL):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped
