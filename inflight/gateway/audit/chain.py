"""A file of JSON lines chained by SHA-256, to which several processes append, and the full files before it.

A line begins with its number and the SHA-256 of the line before it, and ends with the SHA-256 of itself without that
end. A file that is full is renamed to `NAME.NUMBER`, where NUMBER is that of its last line, and the chain continues in
a new one. Each process holds the file's lock while it appends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from inflight_client import InflightError

from inflight.common.atomic_files import open_private, sync

MAX_LINE_BYTES = 2**18
_LINE = re.compile(rb'\{"line":(\d{1,15}),"previous":"([0-9a-f]{64})",.*,"sha256":"([0-9a-f]{64})"\}', re.DOTALL)
_END = len(b',"sha256":""}') + 64


class Link(NamedTuple):
    """A line as the next one refers to it."""

    number: int
    sha256: str


ROOT = Link(0, "0" * 64)
"""What the first line refers to."""


class ParsedLine(NamedTuple):
    """A line without its end of line. `is_whole`: its SHA-256 is that of its text."""

    link: Link
    previous: str
    is_whole: bool

    @classmethod
    def of(cls, line: bytes) -> ParsedLine | None:
        """Return None for what is no line of an audit log."""
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        sha256 = match[3].decode()
        is_whole = hashlib.sha256(line[:-_END] + b"}").hexdigest() == sha256
        return cls(Link(int(match[1]), sha256), match[2].decode(), is_whole)


def line_after(previous: Link, body: bytes) -> tuple[Link, bytes]:
    """Return the line with a body, which is an object of JSON, and how the next one refers to it."""
    text = b'{"line":%d,"previous":"%s",%s' % (previous.number + 1, previous.sha256.encode(), body[1:])
    link = Link(previous.number + 1, hashlib.sha256(text).hexdigest())
    return link, b'%s,"sha256":"%s"}\n' % (text[:-1], link.sha256.encode())


def event(name: str, **values: Any) -> bytes:
    """Return the body of a line about the log itself."""
    return orjson.dumps({"event": name, **values})


def full_files(path: Path) -> list[tuple[int, Path]]:
    """Return the full files before the current one, the oldest first, with the number of the last line of each."""
    path = Path(os.path.realpath(path))
    pattern = re.compile(re.escape(path.name) + r"\.(\d{12})")
    names = os.listdir(path.parent) if path.parent.is_dir() else ()
    return sorted((int(match[1]), path.parent / name) for name in names if (match := pattern.fullmatch(name)))


@dataclass(frozen=True)
class AuditOptions:
    """Where a log is, and whether it has prompts.

    A file is full at about `max_bytes`; the last `keep` full ones are kept, None: all.
    """

    path: Path
    max_bytes: int
    keep: int | None = None
    prompts: bool = False

    @property
    def file(self) -> Path:
        """The current file, which is renamed itself, not a symbolic link to it."""
        return Path(os.path.realpath(self.path))

    def lock(self) -> int:
        """Keep other gateways from the log until the returned descriptor is closed. Raises InflightError."""
        lock = -1
        try:
            Chain(self).check()
            lock = open_private(f"{self.file}.lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise _unusable(self.path, "is written by another gateway; pass another --audit") from None
        except OSError as error:
            raise _unusable(self.path, f"can't be written ({error.strerror}); pass another --audit") from None
        return lock


class Chain:
    """What a process appends lines with; for one thread."""

    def __init__(self, options: AuditOptions) -> None:
        self.path, self._max_bytes, self._keep = options.file, options.max_bytes, options.keep
        self._last = ROOT

    def append(self, bodies: Sequence[bytes]) -> None:
        """Append all lines, or none of them, and wait until they are on the disk.

        Raises OSError, and InflightError `audit_unusable` for a file that is no audit log.
        """
        while True:
            with self._locked() as file:
                size, last, unfinished = self._end_of(file)
                if size and not unfinished and size + sum(map(len, bodies)) > self._max_bytes:
                    os.rename(self.path, f"{self.path}.{last.number:012d}")
                    sync(self.path.parent)
                    continue
                superfluous = [] if size or self._keep is None else full_files(self.path)[: -self._keep]
                events = [event("recovered", bytes=unfinished)] if unfinished else []
                events += [event("removed", through=number) for number, _ in superfluous[-1:]]
                self._write(file, size, last, [*events, *bodies])
            for _, old in superfluous:
                old.unlink(missing_ok=True)
            return

    def check(self) -> None:
        """Raise OSError or InflightError if the file can't be appended to; create it if it is missing."""
        with self._locked() as file:
            self._end_of(file)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of the current file, which another process may have renamed, or a user removed."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(self.path, flags, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise _unusable(self.path, "is no regular file; pass another --audit")
                fcntl.flock(file, fcntl.LOCK_EX)
                is_current = False
                with suppress(FileNotFoundError):
                    is_current = os.path.samestat(os.fstat(file), os.stat(self.path))
                if is_current:
                    yield file
                    return
            finally:
                os.close(file)

    def _end_of(self, file: int) -> tuple[int, Link, int]:
        """Return the size of the whole lines, the last one, and how many bytes of an unfinished one follow.

        Lines that are missing, although this process knows them, are found by a check: the chain continues after them.
        """
        size, lines = _last_lines(file)
        unfinished = lines.pop()
        if not lines and len(unfinished) == size and (full := full_files(self.path)):
            with full[-1][1].open("rb") as before:
                _, lines = _last_lines(before.fileno())
                lines.pop()
        parsed = ParsedLine.of(lines[-1]) if lines else None
        is_ours = parsed is not None or len(unfinished) == size
        if (not is_ours and self._last is ROOT) or not is_cut_line(unfinished):
            raise _unusable(
                self.path, "has other lines than those of an audit log; move it away, or pass another --audit"
            )
        os.fchmod(file, 0o600)
        last = parsed.link if parsed and parsed.link.number > self._last.number else self._last
        return size - len(unfinished), last, len(unfinished)

    def _write(self, file: int, size: int, last: Link, bodies: Sequence[bytes]) -> None:
        lines = []
        for body in bodies:
            last, line = line_after(last, body)
            lines.append(line)
        data = memoryview(b"".join(lines))
        os.ftruncate(file, size)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fdatasync(file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, size)
            raise
        self._last = last


def _unusable(path: Path, why: str) -> InflightError:
    return InflightError(f"the audit log {path} {why}", "audit_unusable")


def _last_lines(file: int) -> tuple[int, list[bytes]]:
    """Return a file's size, and its last lines; the last one is unfinished, or empty."""
    size = os.fstat(file).st_size
    return size, os.pread(file, 2 * MAX_LINE_BYTES, max(0, size - 2 * MAX_LINE_BYTES)).split(b"\n")


def is_cut_line(text: bytes) -> bool:
    """Return whether this may be the beginning of a line; after a power failure, it may be zeros."""
    begin = b'{"line":'
    return text[: len(begin)] == begin[: len(text)] or not text.strip(b"\0")
