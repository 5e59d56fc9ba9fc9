"""What a user of batch jobs did wrong, or what keeps a job from going on."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# SQLite tells of a quota or a limit of file size as of any write that failed.
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)

_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_REMEDY = {
    "disk_full": "free space there",
    "output_unwritable": "check its permissions, or name another directory with --job",
    "job_failed": "check its disk",
}


class BatchError(Exception):
    """One sentence that names the input, what is wrong with it and what to do; `code` is of the one table."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def map_disk_errors(where: Path) -> Iterator[None]:
    """Raises BatchError (`disk_full`, `output_unwritable`, `job_failed`) where system or SQLite can't write there."""
    try:
        yield
    except OSError as error:
        code = "disk_full" if error.errno in _NO_ROOM else "job_failed"
        code = "output_unwritable" if error.errno in _NOT_ALLOWED else code
        raise BatchError(
            f"the job at {where} can't be written: {error.strerror or error}; {_REMEDY[code]}", code
        ) from error
    except sqlite3.Error as error:
        code = "disk_full" if getattr(error, "sqlite_errorcode", None) in _NOT_WRITTEN else "job_failed"
        raise BatchError(f"the job at {where} can't be written: {error}; {_REMEDY[code]}", code) from error
