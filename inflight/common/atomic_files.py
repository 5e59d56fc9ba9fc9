"""Files that are complete or absent after any interruption, with names that survive a power failure."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errno of an OSError without room: on the disk, in a quota, under a limit of file sizes."""


def _nothing() -> None:
    pass


@contextmanager
def atomic_writer(
    path: Path,
    *,
    mode: int = 0o666,
    keep_mode: bool = False,
    temporary: Path | None = None,
    durable: bool = True,
    before_rename: Callable[[], None] = _nothing,
    after_rename: Callable[[], None] = _nothing,
) -> Iterator[IO[bytes]]:
    """Write a file beside `path` and rename it to `path` at the end of the block. Raises OSError.

    On failure, `path` is unchanged and no file is left beside it. A new file has `mode`, less the umask; with
    `keep_mode` it has the mode of the file that it replaces. `temporary` is the name to write to: a fixed one, for
    callers that hold a lock, leaves at most one file behind after a kill. Without `durable`, a power failure may undo
    the rename.
    """
    new = temporary or path.with_name(f".inflight-{secrets.token_hex(8)}")
    if keep_mode:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
    file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb")
    try:
        with file:
            if keep_mode:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        before_rename()
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            os.unlink(new)
        raise
    if durable:
        sync(path.parent)
    after_rename()


def write_atomic(path: Path, content: str | bytes, **options: Any) -> None:
    """Replace a file by this content; for the options see `atomic_writer`. A symbolic link remains one."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_writer(path.resolve(), **options) as file:
        file.write(data)


def install(
    new: Path, path: Path, *, before_rename: Callable[[], None] = _nothing, after_rename: Callable[[], None] = _nothing
) -> None:
    """Rename a complete file to `path`, durably."""
    sync(new)
    before_rename()
    os.replace(new, path)
    sync(path.parent)
    after_rename()


def create_once(
    path: Path, content: str, *, before_link: Callable[[], None] = _nothing, after_link: Callable[[], None] = _nothing
) -> None:
    """Create a file with this content unless it exists; atomic between processes, also on network disks."""
    if not path.exists():
        mine = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with mine.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        before_link()
        with suppress(FileExistsError):
            os.link(mine, path)  # unlike a rename, never replaces a file
        after_link()
        os.unlink(mine)
    sync(path.parent)  # also if another process created it, which may have died before its own sync


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, as `open(..., opener=open_private)`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def sync(path: Path | str) -> None:
    """Wait until a file's content, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
