"""The files that applications upload, and the output and error files of batches (`/v1/files`)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from inflight_client import InflightError

from inflight.common.atomic_files import open_private, sync
from inflight.gateway.batches import PURPOSES
from inflight.gateway.batches.database import (
    Database,
    is_id,
    link,
    list_object,
    map_disk_errors,
    new_id,
    private_directory,
    remove,
    shown_id,
    tenant_key,
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
_LEAST_FREE = 2 << 30
"""Bytes of the disk that uploads leave to the service itself."""
_CHECK_BYTES = 2**23
"""The room is looked at again after so many bytes of an upload."""
OUTPUT_PURPOSE = "batch_output"
MAX_LISTED = 10_000
EXPIRY_SECONDS = (3_600, 2_592_000)
"""Least and most seconds after which a user may let a file expire."""
_MAX_NAME = 512
_PREFIX = "file-"
_OWN = "tenant = ? AND complete AND expires_at > ?"


class FileStore:
    """Files by tenant. A tenant, also the empty one, has access to its own files only.

    Safe for several threads and processes. All methods raise InflightError: `file_not_found`, `file_too_large`,
    `invalid_parameter`, `disk_full`, `output_unwritable`, and `job_damaged` if the database is.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_batch_rows: int = MAX_BATCH_ROWS,
        max_stored_bytes: int = MAX_STORED_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
    ) -> None:
        self.database, self.folder = database, database.root / "files"
        self.max_bytes, self.max_batch_bytes, self.max_batch_rows = max_bytes, max_batch_bytes, max_batch_rows
        self.max_stored_bytes, self.max_tenant_bytes = max_stored_bytes, max_tenant_bytes
        with map_disk_errors("the directory of the files"):
            private_directory(self.folder)

    def begin(self, tenant: str, filename: str) -> Upload:
        """Begin an upload, to be written piece by piece and described before it is committed."""
        if not isinstance(filename, str) or not 0 < len(filename) <= _MAX_NAME or not filename.isprintable():
            raise InflightError(
                f"filename is {shown_id(filename)}; it must be 1 to {_MAX_NAME} printable characters",
                "invalid_parameter",
            )
        return Upload(self, tenant, filename)

    def check_room(self, connection: sqlite3.Connection, tenant: str) -> None:
        """Raise InflightError `disk_full` if the files, those being uploaded included, take more than their room."""
        disk = shutil.disk_usage(self.folder)
        sums = "SELECT count(*), coalesce(sum(bytes), 0) FROM files"
        count, own = connection.execute(f"{sums} WHERE tenant = ?", (tenant_key(tenant),)).fetchone()
        _, stored = connection.execute(sums).fetchone()
        for full, what in (
            (count > MAX_TENANT_FILES, f"you have {count - 1:,} files, and {MAX_TENANT_FILES:,} are kept"),
            (own > self.max_tenant_bytes, f"your files have more than {self.max_tenant_bytes:,} bytes"),
            (stored > self.max_stored_bytes, f"the files of all users have more than {self.max_stored_bytes:,} bytes"),
            (disk.free < _LEAST_FREE, "less than 2 GiB of the server's disk are free"),
        ):
            if full:
                raise InflightError(f"{what}; delete files that you don't need", "disk_full")

    def create(
        self, tenant: str, filename: str, purpose: str, seconds: int | None, chunks: Iterable[bytes]
    ) -> dict[str, Any]:
        """Store a file; return its object. If `chunks` raises, there is no file."""
        with self.begin(tenant, filename) as upload:
            upload.describe(purpose, seconds)
            for chunk in chunks:
                upload.write(chunk)
            return upload.commit()

    def get(self, tenant: str, file_id: str) -> dict[str, Any]:
        """Return the `file` object."""
        query = f"SELECT * FROM files WHERE {_OWN} AND id = ?"
        values = (tenant_key(tenant), time.time(), file_id)
        rows = self.database.read(query, values) if is_id(file_id, _PREFIX) else []
        if not rows:
            raise _not_found(file_id)
        return _object(rows[0])

    def list(
        self,
        tenant: str,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = MAX_LISTED,
        order: str = "desc",
    ) -> dict[str, Any]:
        """Return a page of the tenant's files, the newest first unless `order` is `asc`."""
        where: str = _OWN
        values: list[Any] = [tenant_key(tenant), time.time()]
        if purpose is not None:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        rows, has_more = self.database.page("files", where, values, after, limit, MAX_LISTED, order)
        return list_object([_object(row) for row in rows], has_more)

    def delete(self, tenant: str, file_id: str) -> dict[str, Any]:
        """Delete a file."""
        self.get(tenant, file_id)
        self.remove(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    def open_content(self, tenant: str, file_id: str) -> IO[bytes]:
        """Open a file for reading; it may be deleted while it is read."""
        self.get(tenant, file_id)
        try:
            return (self.folder / file_id).open("rb")
        except FileNotFoundError:
            raise _not_found(file_id) from None

    def link_content(self, tenant: str, file_id: str, target: Path) -> None:
        """Create a second name of the content, which remains if the file is deleted. Raises OSError too."""
        self.get(tenant, file_id)
        try:
            link(self.folder / file_id, target)
        except FileNotFoundError:
            raise _not_found(file_id) from None

    def adopt(self, tenant: str, content: Path, name: str, filename: str, seconds: int) -> dict[str, Any]:
        """Make a complete file of a batch a file of the tenant, and return its object.

        The same `name` is the same file, however often this is called.
        """
        file_id = f"{_PREFIX}{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        if not self.database.read("SELECT 1 FROM files WHERE id = ?", (file_id,)):
            with map_disk_errors(f"the file {filename}"):
                link(content, self.folder / file_id)
                size = (self.folder / file_id).stat().st_size
            with self.database.change(f"the file {filename}") as connection:
                _insert(connection, file_id, tenant, OUTPUT_PURPOSE, filename, size, seconds, complete=True)
        return self.get(tenant, file_id)

    def sweep(self) -> None:
        """Remove expired files, and what uploads of dead processes have left."""
        for row in self.database.read("SELECT id FROM files WHERE complete AND expires_at <= ?", (time.time(),)):
            self.remove(row["id"])
        for row in self.database.read("SELECT id FROM files WHERE NOT complete"):
            if not _is_open(self.folder / row["id"]):
                self.abandon(row["id"])
        self.database.remove_leftovers("files", self.folder)

    def remove(self, file_id: str) -> None:
        """Remove a file: its content first, since a full disk has no room for the change of the record."""
        remove(self.folder / file_id)
        with self.database.change("the list of the files") as connection:
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))

    def abandon(self, file_id: str) -> None:
        """Remove an upload that was not completed."""
        with self.database.change("the list of the files") as connection:
            deleted = connection.execute("DELETE FROM files WHERE id = ? AND NOT complete", (file_id,)).rowcount
        if deleted:
            remove(self.folder / file_id)


def expiry_seconds(expires_after: object, param: str) -> int | None:
    """Return the seconds of an `expires_after` as OpenAI's API has it; None if it is not given.

    Raises InflightError `invalid_parameter`, naming `param`.
    """
    if expires_after is None:
        return None
    least, most = EXPIRY_SECONDS
    seconds = (
        expires_after.get("seconds")
        if isinstance(expires_after, Mapping) and expires_after.get("anchor") == "created_at"
        else None
    )
    if type(seconds) is not int or not least <= seconds <= most:
        raise InflightError(
            f"{param} must have the anchor 'created_at' and {least} to {most} seconds", "invalid_parameter"
        )
    return seconds


class Upload:
    """A file that is being written. As a context manager it leaves nothing behind unless it was committed."""

    def __init__(self, store: FileStore, tenant: str, filename: str) -> None:
        self._store, self._tenant, self._filename = store, tenant, filename
        self._id = new_id(_PREFIX)
        self._purpose: str | None = None
        self._seconds = BATCH_FILE_SECONDS
        self._rows = _RowCount()
        self._size = self._checked = 0
        self._ended = False
        self._what = f"the file {shown_id(filename)}"
        with map_disk_errors(self._what):
            self._file = os.fdopen(open_private(str(store.folder / self._id), os.O_WRONLY | os.O_CREAT), "wb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # shows other processes that this one lives
            with store.database.change(self._what) as connection:
                _insert(connection, self._id, tenant, "", filename, 0, self._seconds, complete=False)
                store.check_room(connection, tenant)
        except BaseException:
            self.abort()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def describe(self, purpose: str, seconds: int | None = None) -> None:
        """Say what the file is for, and how long it is kept, by default 30 days; before or after its content."""
        if purpose not in PURPOSES:
            raise InflightError(
                f"purpose is {shown_id(purpose)}; it must be one of {', '.join(PURPOSES)}", "invalid_parameter"
            )
        if purpose == "batch" and not self._filename.lower().endswith(".jsonl"):
            raise InflightError(
                f"filename is {shown_id(self._filename)}; a file of purpose batch is JSON lines, named .jsonl",
                "invalid_parameter",
            )
        self._purpose, self._seconds = purpose, seconds or self._seconds
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
            self._record(complete=False)
        with map_disk_errors(self._what):
            self._file.write(chunk)

    def commit(self) -> dict[str, Any]:
        """Make the file visible, durably; return its object."""
        assert self._purpose is not None, "describe comes first"
        with map_disk_errors(self._what):
            self._file.flush()
            os.fsync(self._file.fileno())
            sync(self._store.folder)
        row = self._record(complete=True)
        self._ended = True
        self._file.close()
        return _object(row)

    def abort(self) -> None:
        """Remove what was written, unless it was committed."""
        if self._ended:
            return
        self._ended = True
        with suppress(OSError):  # the buffer does not fit on the disk
            self._file.close()
        with suppress(InflightError):  # a sweep removes the record
            self._store.abandon(self._id)
        remove(self._store.folder / self._id)

    def _record(self, *, complete: bool) -> sqlite3.Row:
        """Count what was written so far. Raises InflightError `disk_full`."""
        now = int(time.time())
        with self._store.database.change(self._what) as connection:
            connection.execute(
                "UPDATE files SET purpose = ?, bytes = ?, created_at = ?, expires_at = ?, complete = ? WHERE id = ?",
                (self._purpose or "", self._size, now, now + self._seconds, complete, self._id),
            )
            self._store.check_room(connection, self._tenant)
            row: sqlite3.Row = connection.execute("SELECT * FROM files WHERE id = ?", (self._id,)).fetchone()
            return row


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


def _insert(
    connection: sqlite3.Connection,
    file_id: str,
    tenant: str,
    purpose: str,
    filename: str,
    size: int,
    seconds: int,
    *,
    complete: bool,
) -> None:
    now = int(time.time())
    connection.execute(
        "INSERT OR IGNORE INTO files (id, tenant, purpose, filename, bytes, created_at, expires_at, complete)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (file_id, tenant_key(tenant), purpose, filename, size, now, now + seconds, complete),
    )


def _object(row: sqlite3.Row) -> dict[str, Any]:
    named = ("id", "bytes", "created_at", "expires_at", "filename", "purpose")
    return {"object": "file", "status": "processed", **{name: row[name] for name in named}}


def _is_open(path: Path) -> bool:
    """Return whether a process that lives is writing a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _is_blank(text: bytes) -> bool:
    return not text or text.isspace()


def _not_found(file_id: object) -> InflightError:
    return InflightError(f"there is no file {shown_id(file_id)}; check its id", "file_not_found")
