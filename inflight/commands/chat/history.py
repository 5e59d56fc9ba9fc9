"""Input history for the arrow keys, stored between conversations in the XDG state folder."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import click

from inflight.common.atomic_files import write_atomic

MAX_MESSAGES = 1000
"""Maximum number of messages that are loaded."""

MAX_FILE_BYTES = 4 << 20
"""Maximum bytes that are loaded; about what readline can load without a visible delay."""


class ChatHistory:
    """A history file with one JSON message per line, readable only by its owner. Without a path nothing is stored.

    Several conversations can share the file: each appends whole lines. The file is rewritten only when it is twice as
    long as the limit.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> list[str]:
        """Return the last messages, oldest first. An unusable file is reported once and not changed."""
        if self._path is None:
            return []
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._append(b"")  # report an unwritable file now, not after the first message
            lines, whole = _last_lines(self._path)
            if not whole or len(lines) > 2 * MAX_MESSAGES:
                write_atomic(self._path, "".join(f"{line}\n" for line in lines[-MAX_MESSAGES:]), mode=0o600)
        except OSError as error:
            self._give_up(error)
            return []
        return [_message(line) for line in lines[-MAX_MESSAGES:]]

    def add(self, message: str) -> None:
        """Append one message."""
        try:
            self._append(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._give_up(error)

    def _append(self, line: bytes) -> None:
        if self._path is None:
            return
        # Non-blocking: if this is a pipe, it may have no reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        with os.fdopen(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{self._path} is not a regular file")
            os.fchmod(file.fileno(), 0o600)
            if line and file.write(line) < len(line):
                raise OSError(f"no space left for {self._path}")

    def _give_up(self, error: OSError) -> None:
        click.echo(f"Input history is off: {error}.", err=True)
        self._path = None


def state_file() -> Path:
    """Return `$XDG_STATE_HOME/inflight/chat_history`, as in the XDG Base Directory Specification."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():  # the specification says to ignore a relative path
        folder = Path.home() / ".local" / "state"
    return folder / "inflight" / "chat_history"


def _last_lines(path: Path) -> tuple[list[str], bool]:
    """Return the last lines of the file, and whether they are the whole file."""
    with path.open("rb") as file:
        beyond = file.seek(0, os.SEEK_END) - MAX_FILE_BYTES
        file.seek(max(beyond, 0))
        if beyond > 0:
            file.readline()  # skip the line that was cut
        return [line for line in file.read().decode("utf-8", "replace").split("\n") if line], beyond <= 0


def _message(line: str) -> str:
    """Return the message of a line; a line that is not a JSON string is returned as it is."""
    try:
        message = json.loads(line)
    except ValueError:
        return line
    return message if isinstance(message, str) else line
