"""Streams over stored files: compressed by the suffix of their names, and files of fsspec behind a buffer."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal, cast

from inflight.batch.errors import BatchError, package_missing

_BY_SUFFIX = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd"}


def compression_of(address: str) -> str | None:
    """Return gzip, bz2, xz, zstd, or None."""
    name = address.partition("?")[0] if "://" in address else address
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.lower().endswith(suffix)), None)


@contextmanager
def open_compressed(raw: IO[bytes], compression: str | None, address: str, write: bool = False) -> Iterator[IO[bytes]]:
    """Yield the decompressed content, or the file itself. Raises BatchError `input_invalid` for a damaged one."""
    if compression is None:
        yield raw
        return
    try:
        with _file(raw, compression, address, "wb" if write else "rb") as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise _damaged(address, compression, error) from error
    except OSError as error:  # raised by bz2 and pyarrow
        if error.errno is not None:
            raise
        raise _damaged(address, compression, error) from error


def _file(raw: IO[bytes], compression: str, address: str, mode: Literal["rb", "wb"]) -> IO[bytes]:
    if compression == "gzip":
        # Without name and time, so that the same lines give the same file.
        return cast("IO[bytes]", gzip.GzipFile("", mode, 6, raw, mtime=0))
    if compression == "bz2":
        return cast("IO[bytes]", bz2.open(raw, mode))
    if compression == "xz":
        return cast("IO[bytes]", lzma.LZMAFile(raw, mode))
    return _zstd(raw, address, mode)


def _zstd(raw: IO[bytes], address: str, mode: str) -> IO[bytes]:
    try:
        import pyarrow
    except ImportError as error:
        raise package_missing(address, error, "pyarrow") from error
    if mode == "rb":  # pyarrow's files cannot read lines
        stream: Any = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")
        return io.BufferedReader(stream, 1 << 20)
    return cast("IO[bytes]", pyarrow.CompressedOutputStream(pyarrow.PythonFile(raw, mode="w"), "zstd"))


def _damaged(address: str, compression: str, error: BaseException) -> BatchError:
    words = " ".join(str(error).split()).rstrip(".")
    return BatchError(f"{address} is not a valid {compression} file: {words}; download it again", "input_invalid")


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
