"""A file of lines that only grows, and is cut back to what was committed when a job goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.common.atomic_files import install, sync


class LineFile:
    """Made when the first line comes. What was written counts once a commit says so; until then it may be lost, or cut.

    Nothing is cut before `cut` asks for it. Raises OSError where the disk refuses it, and BatchError: `job_damaged`
    where the file is shorter than it was, `output_exists` where somebody else has written it.
    """

    def __init__(self, path: Path, committed: int) -> None:
        self.path = path
        self.length = committed
        self._file: FileIO | None = None
        self._dirty = False

    def write(self, lines: list[bytes]) -> None:
        """Append lines, each without its end."""
        if self._file is None:
            self._open()
        assert self._file is not None
        data = memoryview(b"\n".join(lines) + b"\n")
        half = len(data) // 2
        self._dirty = True
        failpoint("lines.write")
        for part in (data[:half], data[half:]):
            while part:
                part = part[self._file.write(part) :]
            failpoint("lines.written")
        self.length += len(data)

    def sync(self) -> None:
        """Wait until it is on the disk."""
        if self._dirty and self._file is not None:
            os.fsync(self._file.fileno())
            failpoint("lines.synced")
            self._dirty = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def truncate(self) -> None:
        """Cut off the lines of a run that died before it could commit them."""
        if self.uncommitted_bytes:
            failpoint("lines.cut")
            os.truncate(self.path, self.length)

    @property
    def uncommitted_bytes(self) -> int:
        """How many bytes it has behind its committed end."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self.length:
            raise BatchError(
                f"{self.path} has {size:,} bytes where the job's state says {self.length:,}; put the file back as it"
                " was, or begin a new job",
                "job_damaged",
            )
        return size - self.length

    def _open(self) -> None:
        if self.uncommitted_bytes:
            raise BatchError(
                f"{self.path} was written to by somebody else while the job ran; move it away, and resume the job",
                "output_exists",
            )
        self._file = FileIO(self.path, "ab")
        sync(self.path.parent)  # also where it is there: the process that made it may have died before this


def merge_path(path: Path) -> Path:
    """Where a file's new lines lie until they are all there."""
    return path.with_name(f"{path.name}.merging")


def install_merged(paths: Iterable[Path]) -> None:
    """Give new files, which are whole, the names of the old ones; those that have them already are left.

    They may have got them from a process that died before its directory was synced.
    """
    for path in paths:
        new = merge_path(path)
        if new.exists():
            install(
                new,
                path,
                before_rename=lambda: failpoint("merge.rename"),
                after_rename=lambda: failpoint("merge.renamed"),
            )
        else:
            sync(path.parent)
