"""The files that applications upload, and the output and error files of batches (`/v1/files`)."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from inflight_client import InflightError

from inflight.common.atomic_files import open_private
from inflight.gateway.batches import PURPOSES
from inflight.gateway.batches.entries import (
    NewEntry,
    all_entries,
    check_limit,
    entries,
    is_id,
    map_disk_errors,
    new_id,
    page,
    private_directory,
    read_record,
    remove_entry,
    remove_leftovers,
    shown_id,
    tenant_folder,
    write_record,
)

MAX_FILE_BYTES = 512_000_000
MAX_BATCH_BYTES = 200_000_000
MAX_BATCH_ROWS = 50_000
"""OpenAI's limits of a file, and of the bytes and lines of the input of a batch."""
BATCH_FILE_SECONDS = 30 * 86_400
"""Seconds that a file is kept, unless its user asks for less."""
MAX_STORED_BYTES, MAX_TENANT_BYTES = 20_000_000_000, 5_000_000_000
"""Of the files of all tenants, and of one."""
MAX_TENANT_FILES = 10_000
_LEAST_FREE = 0.1
"""The part of the disk that uploads leave to the service itself."""
_CHECK_BYTES = 2**23
"""The room is looked at again after so many bytes of an upload."""
OUTPUT_PURPOSE = "batch_output"
MAX_LISTED = 10_000
EXPIRY_SECONDS = (3_600, 2_592_000)
"""Least and most seconds after which a user may let a file expire."""
_MAX_NAME = 512
_PREFIX = "file-"
_DATA, _RECORD = "data", "file.json"
_FIELDS = ("id", "bytes", "created_at", "expires_at", "filename", "purpose", "status")


class FileStore:
    """Files by tenant, in `root`. A tenant, also the empty one, has access to its own files only.

    Safe for several threads and processes. All methods raise InflightError: `file_not_found`, `file_too_large`,
    `invalid_parameter`, `disk_full`, `output_unwritable`, and `job_damaged` for a file whose record is unreadable.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_batch_rows: int = MAX_BATCH_ROWS,
        max_stored_bytes: int = MAX_STORED_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
    ) -> None:
        self.root = root.absolute()
        self.max_bytes, self.max_batch_bytes, self.max_batch_rows = max_bytes, max_batch_bytes, max_batch_rows
        self.max_stored_bytes, self.max_tenant_bytes = max_stored_bytes, max_tenant_bytes
        with map_disk_errors("the directory of the files"):
            private_directory(self.root)

    def begin(self, tenant: str, filename: str) -> Upload:
        """Begin an upload, to be written piece by piece and described before it is committed."""
        _check_name(filename)
        self.check_room(tenant, new=True)
        return Upload(self, tenant, filename)

    def check_room(self, tenant: str, new: bool = False) -> None:
        """Raise InflightError `disk_full` if the files, those being uploaded included, take more than their room."""
        free = shutil.disk_usage(self.root)
        sizes = {folder: _sizes(folder) for folder in self.root.iterdir() if folder.is_dir()}
        own = sizes.get(tenant_folder(self.root, tenant), [])
        for full, what in (
            (len(own) + new > MAX_TENANT_FILES, f"you have {len(own):,} files, and {MAX_TENANT_FILES:,} are kept"),
            (sum(own) > self.max_tenant_bytes, f"your files have more than {self.max_tenant_bytes:,} bytes"),
            (
                sum(map(sum, sizes.values())) > self.max_stored_bytes,
                f"the files of all users have more than {self.max_stored_bytes:,} bytes",
            ),
            (free.free < _LEAST_FREE * free.total, "less than a tenth of the server's disk is free"),
        ):
            if full:
                raise InflightError(f"{what}; delete files that you don't need", "disk_full")

    def create(
        self, tenant: str, filename: str, purpose: str, expires_at: int | None, chunks: Iterable[bytes]
    ) -> dict[str, Any]:
        """Store a file; return its object. If `chunks` raises, there is no file."""
        with self.begin(tenant, filename) as upload:
            upload.describe(purpose, expires_at)
            for chunk in chunks:
                upload.write(chunk)
            return upload.commit()

    def get(self, tenant: str, file_id: str) -> dict[str, Any]:
        """Return the `file` object."""
        return self._read(self._path(tenant, file_id), file_id)

    def list(
        self,
        tenant: str,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = MAX_LISTED,
        order: str = "desc",
    ) -> dict[str, Any]:
        """Return a page of the tenant's files, the newest first unless `order` is `asc`."""
        limit = check_limit(limit, MAX_LISTED)
        found: list[tuple[int, dict[str, Any]]] = []
        for path in entries(tenant_folder(self.root, tenant)):
            try:
                record = _read_record(path)
            except (FileNotFoundError, InflightError):  # deleted meanwhile, or damaged: `get` says so
                continue
            if not _is_expired(record["file"]) and purpose in (None, record["file"]["purpose"]):
                found.append((record["order"], record["file"]))
        return page(found, after, limit, order)

    def delete(self, tenant: str, file_id: str) -> dict[str, Any]:
        """Delete a file, a damaged one too."""
        if not remove_entry(self._path(tenant, file_id)):
            raise _not_found(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    def open_content(self, tenant: str, file_id: str) -> IO[bytes]:
        """Open a file for reading; it may be deleted while it is read."""
        self.get(tenant, file_id)
        try:
            return (self._path(tenant, file_id) / _DATA).open("rb")
        except FileNotFoundError:
            raise _not_found(file_id) from None

    def link_content(self, tenant: str, file_id: str, target: Path) -> None:
        """Create a second name of the content, which remains if the file is deleted. Raises OSError too."""
        self.get(tenant, file_id)
        try:
            _link(self._path(tenant, file_id) / _DATA, target)
        except FileNotFoundError:
            raise _not_found(file_id) from None

    def adopt(self, tenant: str, content: Path, name: str, filename: str, expires_at: int) -> dict[str, Any]:
        """Make a complete file of a batch a file of the tenant, and return its object.

        The same `name` is the same file, however often this is called.
        """
        file_id = f"{_PREFIX}{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        path = self._path(tenant, file_id)
        with map_disk_errors(f"the file {filename}"):
            if not path.exists():
                entry = NewEntry(path.parent)
                try:
                    _link(content, entry.path / _DATA)
                    size = (entry.path / _DATA).stat().st_size
                    record = _record(file_id, filename, OUTPUT_PURPOSE, size, expires_at)
                    write_record(entry.path / _RECORD, record)
                    entry.commit(file_id)
                finally:
                    entry.discard()
        return self._read(path, file_id)

    def sweep(self) -> None:
        """Remove expired files, and what uploads of dead processes have left."""
        remove_leftovers(self.root)
        for path in all_entries(self.root):
            try:
                expired = _is_expired(_read_record(path)["file"])
            except (FileNotFoundError, InflightError):
                continue
            if expired:
                remove_entry(path)

    def _path(self, tenant: str, file_id: str) -> Path:
        if not is_id(file_id, _PREFIX):
            raise _not_found(file_id)
        return tenant_folder(self.root, tenant) / file_id

    def _read(self, path: Path, file_id: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = _read_record(path)["file"]
        except FileNotFoundError:
            raise _not_found(file_id) from None
        if _is_expired(found):
            remove_entry(path)
            raise _not_found(file_id)
        return found


def expiry_seconds(given: object, param: str) -> int | None:
    """Return the seconds of an `expires_after` as OpenAI's API has it; None if it is not given.

    Raises InflightError `invalid_parameter`, naming `param`.
    """
    if given is None:
        return None
    least, most = EXPIRY_SECONDS
    seconds = given.get("seconds") if isinstance(given, Mapping) and given.get("anchor") == "created_at" else None
    if type(seconds) is not int or not least <= seconds <= most:
        raise InflightError(
            f"{param} must have the anchor 'created_at' and {least} to {most} seconds", "invalid_parameter"
        )
    return seconds


class Upload:
    """A file that is being written. As a context manager it leaves nothing behind unless it was committed."""

    def __init__(self, store: FileStore, tenant: str, filename: str) -> None:
        self._store, self._tenant, self._filename = store, tenant, filename
        self._purpose: str | None = None
        self._expires_at = int(time.time()) + BATCH_FILE_SECONDS
        self._rows = _RowCount()
        self._size = self._checked = 0
        with map_disk_errors(f"the file {shown_id(filename)}"):
            self._entry = NewEntry(tenant_folder(store.root, tenant))
            self._file = os.fdopen(open_private(str(self._entry.path / _DATA), os.O_WRONLY | os.O_CREAT), "wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def describe(self, purpose: str, expires_at: int | None = None) -> None:
        """Say what the file is for, before or after its content. `expires_at`: seconds since 1970, in 30 days by
        default.
        """
        if purpose not in PURPOSES:
            raise InflightError(
                f"purpose is {shown_id(purpose)}; it must be one of {', '.join(PURPOSES)}", "invalid_parameter"
            )
        if purpose == "batch" and not self._filename.lower().endswith(".jsonl"):
            raise InflightError(
                f"filename is {shown_id(self._filename)}; a file of purpose batch is JSON lines, named .jsonl",
                "invalid_parameter",
            )
        self._purpose, self._expires_at = purpose, expires_at or self._expires_at
        self._check_limits()

    def _check_limits(self) -> None:
        is_batch = self._purpose == "batch"
        most = self._store.max_batch_bytes if is_batch else self._store.max_bytes
        if self._size > most:
            raise InflightError(
                f"the file {shown_id(self._filename)} has more than {most:,} bytes; split it", "file_too_large"
            )
        if is_batch and self._rows.count > self._store.max_batch_rows:
            raise InflightError(
                f"the file {shown_id(self._filename)} has more than {self._store.max_batch_rows:,} requests; split it",
                "file_too_large",
            )

    def write(self, chunk: bytes) -> None:
        """Append a piece. It blocks for the disk, so call it in a thread where an event loop runs."""
        self._size += len(chunk)
        self._rows.add(chunk)
        self._check_limits()
        if self._size - self._checked > _CHECK_BYTES:
            self._checked = self._size
            self._store.check_room(self._tenant)
        with map_disk_errors(f"the file {shown_id(self._filename)}"):
            self._file.write(chunk)

    def commit(self) -> dict[str, Any]:
        """Make the file visible, durably; return its object."""
        file_id = new_id(_PREFIX)
        assert self._purpose is not None, "describe comes first"
        record = _record(file_id, self._filename, self._purpose, self._size, self._expires_at)
        with map_disk_errors(f"the file {shown_id(self._filename)}"):
            self._file.flush()
            self._store.check_room(self._tenant)
            os.fsync(self._file.fileno())
            self._file.close()
            write_record(self._entry.path / _RECORD, record)
            self._entry.commit(file_id)
        found: dict[str, Any] = record["file"]
        return found

    def abort(self) -> None:
        """Remove what was written, unless it was committed."""
        try:
            self._file.close()
        except OSError:  # the buffer does not fit on the disk
            pass
        self._entry.discard()


class _RowCount:
    """Counts lines that are not blank, the last one without its end too, in pieces of any size."""

    def __init__(self) -> None:
        self._ended, self._in_row = 0, False

    @property
    def count(self) -> int:
        return self._ended + self._in_row

    def add(self, chunk: bytes) -> None:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            self._ended += self._in_row or not _is_blank(line)
            self._in_row = False
        self._in_row = self._in_row or not _is_blank(last)


def _sizes(folder: Path) -> list[int]:
    """Return the sizes of a tenant's files, those that are being written included."""
    found = []
    for entry in folder.iterdir():
        with suppress(OSError):
            found.append((entry / _DATA).stat().st_size)
    return found


def _is_blank(text: bytes) -> bool:
    return not text or text.isspace()


def _read_record(path: Path) -> dict[str, Any]:
    return read_record(path / _RECORD, "file", _FIELDS)


def _check_name(filename: object) -> None:
    if not isinstance(filename, str) or not 0 < len(filename) <= _MAX_NAME or not filename.isprintable():
        raise InflightError(
            f"filename is {shown_id(filename)}; it must be 1 to {_MAX_NAME} printable characters", "invalid_parameter"
        )


def _record(file_id: str, filename: str, purpose: str, size: int, expires_at: int | None) -> dict[str, Any]:
    found = {
        "id": file_id,
        "object": "file",
        "bytes": size,
        "created_at": int(time.time()),
        "expires_at": expires_at,
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
    }
    return {"order": time.time_ns(), "file": found}


def _is_expired(found: dict[str, Any]) -> bool:
    expires_at = found.get("expires_at")
    return isinstance(expires_at, int | float) and expires_at <= time.time()


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where the disk has no links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
    os.chmod(target, 0o600)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _not_found(file_id: object) -> InflightError:
    return InflightError(f"there is no file {shown_id(file_id)}; check its id", "file_not_found")
