"""What was typed before, for the arrow keys: kept between conversations in the XDG state folder."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import click

from inflight.common.atomic_files import write_atomic

MAX_MESSAGES = 1000
"""Messages that come back, at most."""

MAX_FILE_BYTES = 4 << 20
"""Bytes of them, at most; about what a terminal's readline takes up in a moment."""


class ChatHistory:
    """A file of messages, one a line as JSON, which only its owner can read. Without a path nothing is kept.

    Conversations at the same time share it: each appends whole lines, and only what has grown to twice its length is
    written anew.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The last messages, the oldest first; a file that can't be read or written is told once, and left alone."""
        if self._path is None:
            return []
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._append(b"")  # told now, not behind the first message
            lines, whole = _last_lines(self._path)
            if not whole or len(lines) > 2 * MAX_MESSAGES:
                write_atomic(self._path, "".join(f"{line}\n" for line in lines[-MAX_MESSAGES:]), mode=0o600)
        except OSError as error:
            self._give_up(error)
            return []
        return [_message(line) for line in lines[-MAX_MESSAGES:]]

    def add(self, message: str) -> None:
        """Keep one message more."""
        try:
            self._append(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._give_up(error)

    def _append(self, line: bytes) -> None:
        if self._path is None:
            return
        # Without waiting: a pipe that stands there has perhaps no reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        with os.fdopen(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{self._path} is no regular file")
            os.fchmod(file.fileno(), 0o600)
            if line and file.write(line) < len(line):
                raise OSError(f"no room is left for {self._path}")

    def _give_up(self, error: OSError) -> None:
        click.echo(f"No history is kept: {error}.", err=True)
        self._path = None


def state_file() -> Path:
    """Where it is kept: `$XDG_STATE_HOME/inflight/chat_history`, by the XDG Base Directory Specification."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():  # such a value is to be ignored
        folder = Path.home() / ".local" / "state"
    return folder / "inflight" / "chat_history"


def _last_lines(path: Path) -> tuple[list[str], bool]:
    """The lines of the file's end, and whether they are all that it has."""
    with path.open("rb") as file:
        beyond = file.seek(0, os.SEEK_END) - MAX_FILE_BYTES
        file.seek(max(beyond, 0))
        if beyond > 0:
            file.readline()  # its beginning is not there
        return [line for line in file.read().decode("utf-8", "replace").split("\n") if line], beyond <= 0


def _message(line: str) -> str:
    """A line's message; a line that is none stands for itself."""
    try:
        found = json.loads(line)
    except ValueError:
        return line
    return found if isinstance(found, str) else line
