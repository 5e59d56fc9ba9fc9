"""Small objects of a job under one address, with atomic replacement where the storage supports it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from inflight.batch.errors import BatchError
from inflight.batch.storage.atomic_output import atomic_output
from inflight.batch.storage.files import StoredFile
from inflight.batch.storage.secret_address import masked

_READ_BYTES = 1 << 20


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ObjectStore:
    """A folder in object storage or on a disk. Everything raises the BatchErrors of storages."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.shown = masked(self.address)
        """The address for messages, without secrets."""
        self._s3 = address.lower().startswith(("s3://", "s3a://"))

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the content and the storage's tag, if any; None if the object is missing."""
        file = self._file(name)
        if not file.exists():
            return None
        if self._s3:
            with file.map_errors():  # the tag first: a tag of older content replaces nothing
                tag = str(file.fs.info(file.path, refresh=True)["ETag"])
                return file.fs.cat_file(file.path), tag
        with file.reading() as reading:
            return reading.content.read(), ""

    def read_blocks(self, name: str) -> Iterator[bytes]:
        """Yield the content in blocks."""
        with self._file(name).reading() as reading:
            while block := reading.content.read(_READ_BYTES):
                yield block

    def put(self, name: str, source: Readable) -> None:
        with atomic_output(self._address(name)) as file:
            while block := source.read(_READ_BYTES):
                file.write(block)

    def replace_if_unchanged(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write the object if it still has that tag (None: if it is missing); return whether it was written.

        Only S3 guarantees the condition; elsewhere the object is always written. Content must differ between machines:
        if the content is already there, this machine wrote it and repeated the request because the response was lost.
        """
        file = self._file(name)
        if not self._s3:
            with atomic_output(self._address(name)) as opened:
                opened.write(content)
            return True
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        with file.map_errors():
            try:
                file.fs.pipe_file(file.path, content, **condition)
            except FileExistsError:
                return self._has_content(name, content)
            except OSError as error:
                if error.errno == errno.EINVAL:  # s3fs's error for "412 Precondition Failed"
                    return self._has_content(name, content)
                if error.errno != errno.ENOSYS:
                    raise
                file.fs.pipe_file(file.path, content)  # a storage without conditional writes
        return True

    def list_names(self) -> list[str]:
        """Return all names; none if the storage cannot list them."""
        file = self._file("")
        try:
            with file.map_errors():
                return [Path(path).name for path in file.fs.ls(file.path, detail=False)]
        except BatchError:
            return []

    def remove(self, name: str) -> None:
        self._file(name).remove()

    def _has_content(self, name: str, content: bytes) -> bool:
        stored = self.read(name)
        return stored is not None and stored[0] == content

    def _address(self, name: str) -> str:
        return f"{self.address}/{name}" if name else self.address

    def _file(self, name: str) -> StoredFile:
        return StoredFile(self._address(name), missing_code="job_damaged")
