"""Files of fsspec behind a buffer of Python, which reads lines much faster."""

from __future__ import annotations

import io
from typing import IO, Any

BUFFER = 1 << 20
"""Bytes per read."""


def open_buffered(file: Any) -> IO[bytes]:
    """Return a buffered reader for a file of fsspec; closing it closes the file."""
    return io.BufferedReader(_Raw(file), BUFFER)


def skip_bytes(file: IO[bytes], count: int) -> None:
    """Skip bytes by reading them, in a file that cannot seek."""
    while count and (data := file.read(min(count, BUFFER))):
        count -= len(data)


class _Raw(io.RawIOBase):
    """A raw stream for io.BufferedReader."""

    def __init__(self, file: Any) -> None:
        self._file = file
        seekable = getattr(file, "seekable", None)
        self._seekable = bool(seekable and seekable()) and getattr(file, "size", None) is not None

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
