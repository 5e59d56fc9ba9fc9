"""What sources of text in files share."""

from __future__ import annotations

from typing import IO, Any, cast

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import Position
from inflight.batch.job.spec import FileFormat
from inflight.batch.storage.files import Reading, StoredFile

MAX_ROW_BYTES = 16 << 20
"""Bytes of a row, at most: far more than any model takes, and little enough to be held."""
_OFFSET_INTERVAL = 1 << 20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class FileSource:
    """A file of rows, one after the other. Raises BatchError `input_not_found`, `input_invalid` where there are none.

    A position is the offset of the next row in what is inside the file, and the number of lines before it.
    """

    format: FileFormat
    key_column: str | None = None
    columns: list[str] | None = None

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._size = file.size()
        if self._size == 0:
            raise BatchError(f"{file.shown} is empty; there is nothing to ask", "input_invalid")
        self.fingerprint = file.fingerprint()
        self._read_so_far = (0, 0)
        self._next_offset_record = 0
        with file.reading() as reading:
            if reading.content.read(2) in _UTF16:
                raise BatchError(f"{file.shown} is in UTF-16; convert it to UTF-8", "input_invalid")

    @property
    def total(self) -> int | None:
        return None

    def check_unchanged(self) -> None:
        pass

    def fraction_read(self, position: Position) -> float | None:
        inside, outside = self._read_so_far if self._file.compression else (1, 1)
        if not self._size or not inside:
            return None
        return min(1.0, offset_of(position)[0] * (outside / inside) / self._size)

    def _record_offset(self, reading: Reading, offset: int) -> None:
        """How many bytes of the file itself came to so many inside: only a file that is compressed needs it."""
        self._read_so_far = (offset, reading.raw.tell() if self._file.compression else offset)
        self._next_offset_record = offset + _OFFSET_INTERVAL


def offset_of(position: Position | None) -> tuple[int, int]:
    """Offset and lines of a position; the beginning for None."""
    if position is None:
        return 0, 0
    offset, lines = cast("tuple[Any, Any]", position)
    return int(offset), int(lines)


def skip_line(file: IO[bytes]) -> int:
    """Read to the end of the line; the bytes that it took."""
    skipped = 0
    while data := file.readline(_OFFSET_INTERVAL):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped
