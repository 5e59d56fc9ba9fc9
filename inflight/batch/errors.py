"""Errors of batch jobs that a user can act on."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inflight.common.atomic_files import DISK_FULL_ERRORS

# SQLite reports a quota or a file size limit as a failed write.
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)

_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_REMEDY = {
    "disk_full": "free disk space",
    "output_unwritable": "check its permissions or choose another directory with --job",
    "job_failed": "check its disk",
}


class BatchError(Exception):
    """A sentence that names the input, what is wrong and what to do; `code` is in docs/errors.md."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def package_missing(subject: str, error: ImportError, package: str, extra: str = "batch") -> BatchError:
    """Return the error for a package that `subject` needs and that cannot be imported, in its version perhaps."""
    return BatchError(f"{subject} needs the package {package} ({error}); install inflight[{extra}]", "package_missing")


@contextmanager
def map_disk_errors(where: Path) -> Iterator[None]:
    """Raises BatchError (`disk_full`, `output_unwritable`, `job_failed`) for write errors of the system or SQLite."""
    try:
        yield
    except OSError as error:
        code = "disk_full" if error.errno in DISK_FULL_ERRORS else "job_failed"
        code = "output_unwritable" if error.errno in _NOT_ALLOWED else code
        raise BatchError(
            f"the job at {where} can't be written: {error.strerror or error}; {_REMEDY[code]}", code
        ) from error
    except sqlite3.Error as error:
        code = "disk_full" if getattr(error, "sqlite_errorcode", None) in _NOT_WRITTEN else "job_failed"
        raise BatchError(f"the job at {where} can't be written: {error}; {_REMEDY[code]}", code) from error
