"""What was typed before, for the arrow keys: kept between conversations in the XDG state folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

_LENGTH = 1000


class ChatHistory:
    """A file of messages, one a line as JSON, which only its owner can read. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The last messages, the oldest first; a file that can't be read or written is told once, and left alone."""
        if self._path is None:
            return []
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            messages = [_message(line) for line in self._lines(self._path)][-_LENGTH:]
            self._write(messages, os.O_TRUNC)
        except OSError as error:
            click.echo(f"No history is kept: {error}.", err=True)
            self._path = None
            return []
        return messages

    def add(self, message: str) -> None:
        """Keep one message more."""
        try:
            self._write([message], os.O_APPEND)
        except OSError as error:
            click.echo(f"No history is kept: {error}.", err=True)
            self._path = None

    @staticmethod
    def _lines(path: Path) -> list[str]:
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []

    def _write(self, messages: list[str], how: int) -> None:
        if self._path is None:
            return
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o600), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.writelines(json.dumps(message) + "\n" for message in messages)


def state_file() -> Path:
    """Where it is kept: `$XDG_STATE_HOME/inflight/chat_history`, by the XDG Base Directory Specification."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():  # such a value is to be ignored
        folder = Path.home() / ".local" / "state"
    return folder / "inflight" / "chat_history"


def _message(line: str) -> str:
    """A line's message; a line that is none stands for itself."""
    try:
        found = json.loads(line)
    except ValueError:
        return line
    return found if isinstance(found, str) else line
