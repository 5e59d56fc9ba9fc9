"""An append-only file of lines, which is truncated to its committed length when a job resumes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.common.atomic_files import install, sync


class LineFile:
    """A file that is created with the first line. Lines are durable once a commit includes them; until then they may be
    lost or truncated.

    Nothing is truncated before `truncate` is called. Raises OSError for disk errors, and BatchError: `job_damaged` if
    the file is shorter than committed, `output_exists` if another program has written it.
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
        """Wait until the file is on disk."""
        if self._dirty and self._file is not None:
            os.fsync(self._file.fileno())
            failpoint("lines.synced")
            self._dirty = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def truncate(self) -> None:
        """Remove the lines of a run that died before it could commit them."""
        if self.uncommitted_bytes:
            failpoint("lines.cut")
            os.truncate(self.path, self.length)

    @property
    def uncommitted_bytes(self) -> int:
        """Return the number of bytes after the committed end."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self.length:
            raise BatchError(
                f"{self.path} has {size:,} bytes where the job's state says {self.length:,}; restore the file, or "
                f"start a new job",
                "job_damaged",
            )
        return size - self.length

    def _open(self) -> None:
        if self.uncommitted_bytes:
            raise BatchError(
                f"{self.path} was written by another program while the job ran; move it away and resume the job",
                "output_exists",
            )
        self._file = FileIO(self.path, "ab")
        sync(self.path.parent)  # also if it exists: the process that created it may have died before this


def merge_path(path: Path) -> Path:
    """Return where a file's new lines are written until they are complete."""
    return path.with_name(f"{path.name}.merging")


def install_merged(paths: Iterable[Path]) -> None:
    """Rename complete new files to the old names; skip those that were renamed already.

    The process that renamed those may have died before it synced their directory.
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


def read_lines(path: Path | None) -> Iterator[bytes]:
    """Yield a file's lines without their ends; none if the file is missing."""
    if path is not None and path.exists():
        with path.open("rb") as file:
            for line in file:
                yield line.rstrip(b"\n")
