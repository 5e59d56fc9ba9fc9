"""The audio files that rows name: local ones as they are, others as temporary copies."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, BinaryIO, cast

from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.storage.addresses import local_path
from inflight.batch.storage.files import StoredFile

MAX_BYTES = 4 << 30
"""Bytes of the longest file that is copied."""


@contextmanager
def open_audio(address: str) -> Iterator[tuple[BinaryIO, str]]:
    """Yield an open file of the system, and what is the same while its content is. Raises InflightError.

    What a storage streams is copied first: a decoder takes an error of it for the end of the file.
    """
    try:
        file, version = _opened(StoredFile(address))
    except BatchError as error:
        raise InflightError(str(error), error.code) from None
    with file:
        yield file, version


def _opened(stored: StoredFile) -> tuple[BinaryIO, str]:
    if stored.is_local and stored.compression is None:
        with stored.map_errors():
            file = os.fdopen(os.open(local_path(stored.address), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
            about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            return file, f"{about.st_size} {about.st_mtime_ns}"
        file.close()
        raise BatchError(f"{stored.shown} is no file; name one", stored.missing_code)
    with ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile())
        with stored.reading() as reading:
            _copy(reading.content, copy, stored.shown)
        copy.seek(0)
        version = hashlib.file_digest(copy, "sha256").hexdigest()
        copy.seek(0)
        stack.pop_all()
    return cast("BinaryIO", copy), version


def _copy(file: IO[bytes], copy: IO[bytes], shown: str) -> None:
    left = MAX_BYTES
    while data := file.read(1 << 20):
        left -= len(data)
        if left < 0:
            raise BatchError(
                f"{shown} has more than {MAX_BYTES >> 30} GiB, too many to copy; cut it into files", "audio_too_long"
            )
        copy.write(data)
