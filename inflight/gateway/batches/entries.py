"""Directories of files and batches, one folder per tenant: complete or absent, and readable only by their owner."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from inflight_client import InflightError

from inflight.common.atomic_files import DISK_FULL_ERRORS, make_directory, sync, write_atomic

_HIDDEN = (".new-", ".old-")
_COARSE_NS = 2_000_000_000
_LEFTOVER_SECONDS = 60.0
"""Age from which an unlocked temporary directory is one of a process that died."""


@contextmanager
def map_disk_errors(what: str) -> Iterator[None]:
    """Raises InflightError `disk_full` or `output_unwritable` for an OSError; `what` names what is being written."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise InflightError(f"the disk has no room for {what}; free space on it", "disk_full") from None
        raise InflightError(
            f"{what} can't be written: {error.strerror or type(error).__name__}; check the gateway's data directory",
            "output_unwritable",
        ) from None


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def is_id(value: object, prefix: str) -> bool:
    """Return whether it is an id as `new_id` makes them; nothing else may become a path."""
    return isinstance(value, str) and re.fullmatch(rf"{prefix}[0-9a-f]{{32}}", value) is not None


def shown_id(value: object) -> str:
    """Return an id for a message, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def private_directory(path: Path) -> Path:
    """Create a directory that only its owner can enter, and its missing parents."""
    if not path.is_dir():
        make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        sync(path.parent)
    return path


def tenant_folder(root: Path, tenant: str) -> Path:
    """Return the folder of a tenant, whose name may hold any character."""
    return root / hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class NewEntry:
    """A temporary directory that `commit` renames. It is locked while its process fills it."""

    def __init__(self, folder: Path) -> None:
        private_directory(folder)
        self.path = folder / f".new-{secrets.token_hex(8)}"
        self.path.mkdir(mode=0o700)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def commit(self, name: str) -> Path:
        """Give the directory its name, durably; an entry of that name that exists already is kept instead."""
        target = self.path.with_name(name)
        sync(self.path)
        try:
            os.rename(self.path, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.discard()
        sync(target.parent)
        self._close()
        return target

    def discard(self) -> None:
        """Remove the directory unless it was committed."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            self._close()

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_entry(path: Path) -> bool:
    """Remove an entry at once; return False if another process has removed it."""
    old = path.with_name(f".old-{secrets.token_hex(8)}")
    try:
        os.rename(path, old)
    except FileNotFoundError:
        return False
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)
    return True


def entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a tenant, in no order."""
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for one in found:
            if not one.name.startswith("."):
                yield Path(one.path)


def all_entries(root: Path) -> Iterator[Path]:
    """Yield the entries of all tenants."""
    for folder in _folders(root):
        yield from entries(Path(folder.path))


def _folders(root: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError), os.scandir(root) as folders:
        yield from (folder for folder in folders if folder.is_dir())


@dataclass
class _KnownFolder:
    changed: int = -1
    open: set[Path] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)


class OpenEntries:
    """The entries of all tenants but those that have ended. A folder is read again only after it has changed, so their
    number does not matter."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, _KnownFolder] = {}

    def paths(self) -> list[Path]:
        """Return them, in no order."""
        found: list[Path] = []
        for folder in _folders(self._root):
            known = self._known.setdefault(folder.path, _KnownFolder())
            changed = folder.stat().st_mtime_ns
            # A change just after a reading may leave the same time, since clocks of file systems are coarse.
            if changed != known.changed or time.time_ns() - changed < _COARSE_NS:
                names = {path.name for path in entries(Path(folder.path))}
                known.ended &= names
                known.changed, known.open = changed, {Path(folder.path, name) for name in names - known.ended}
            found += known.open
        return found

    def end(self, path: Path) -> None:
        """Leave out an entry from now on."""
        known = self._known.setdefault(str(path.parent), _KnownFolder())
        known.ended.add(path.name)
        known.open.discard(path)


def remove_leftovers(root: Path) -> None:
    """Remove what processes that died were about to create or to remove."""
    for path in (one for start in _HIDDEN for one in root.glob(f"*/{start}*")):
        with suppress(OSError):
            if path.name.startswith(".new-") and time.time() - path.stat().st_mtime < _LEFTOVER_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def read_record(path: Path, kind: str, fields: Collection[str]) -> dict[str, Any]:
    """Read a record, an object with the object `kind` in it, which has these fields.

    Raises FileNotFoundError, and InflightError `job_damaged` for anything that is not a record.
    """
    try:
        record = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        record = None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InflightError(
            f"{path.parent.name} can't be read: {error.strerror or type(error).__name__}", "job_damaged"
        ) from None
    found = record.get(kind) if isinstance(record, dict) else None
    if not (isinstance(found, dict) and found.keys() >= set(fields) and isinstance(record.get("order"), int)):
        raise InflightError(f"the record of {path.parent.name} is damaged; delete it, or restore it", "job_damaged")
    return dict(record)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace a record atomically. Raises OSError."""
    write_atomic(path, orjson.dumps(record), mode=0o600)


def page(found: list[tuple[int, dict[str, Any]]], after: str | None, limit: int, order: str) -> dict[str, Any]:
    """Return a page of objects with their order, as OpenAI's lists are. Raises InflightError `invalid_parameter`."""
    if order not in ("asc", "desc"):
        raise InflightError(f"order is {shown_id(order)}; it must be 'asc' or 'desc'", "invalid_parameter")
    found.sort(key=lambda one: (one[0], one[1]["id"]), reverse=order == "desc")
    objects = [one for _, one in found]
    if after is not None:
        place = next((number for number, one in enumerate(objects) if one["id"] == after), None)
        if place is None:
            raise InflightError(
                f"after is {shown_id(after)}, which is not in the list; pass the last id of a page", "invalid_parameter"
            )
        objects = objects[place + 1 :]
    data = objects[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(objects) > limit,
    }


def check_limit(limit: object, highest: int) -> int:
    """Return the limit of a list. Raises InflightError `invalid_parameter`."""
    if type(limit) is not int or not 1 <= limit <= highest:
        raise InflightError(f"limit is {shown_id(limit)}; it must be 1 to {highest}", "invalid_parameter")
    return limit
