"""Files that are complete or not there at all, whatever interrupts the writing, and names that survive a power cut."""

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
"""The errno of an OSError where there is no room: on the disk, in a quota, under a limit of file sizes."""


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
    """Write a file beside `path` and rename it to `path` once the block has ended. Raises OSError.

    If anything fails, `path` is as it was and nothing is left beside it. A new file has `mode`, less the umask; with
    `keep_mode` it has the mode of the file that it replaces. `temporary` is the name to write to: a fixed one, for
    callers that hold a lock, leaves at most one file behind after a kill. Without `durable` the rename may be lost in a
    power cut.
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
    """Replace a file by this content; for the options see `atomic_writer`. A symbolic link stays one."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_writer(path.resolve(), **options) as file:
        file.write(data)


def install(
    new: Path,
    path: Path,
    *,
    before_rename: Callable[[], None] = _nothing,
    after_rename: Callable[[], None] = _nothing,
) -> None:
    """Give a complete file the name `path`, durably."""
    sync(new)
    before_rename()
    os.replace(new, path)
    sync(path.parent)
    after_rename()


def create_once(
    path: Path,
    content: str,
    *,
    before_link: Callable[[], None] = _nothing,
    after_link: Callable[[], None] = _nothing,
) -> None:
    """Create a file with this content unless there is one, whichever process is first; network disks included."""
    if not path.exists():
        mine = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with mine.open("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        before_link()
        with suppress(FileExistsError):
            os.link(mine, path)  # never replaces a file, unlike a rename
        after_link()
        os.unlink(mine)
    sync(path.parent)  # also if another process created it: it may have died before it did this


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def open_private(path: str, flags: int) -> int:
    """For `open(..., opener=open_private)`: only the owner may read the file."""
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
