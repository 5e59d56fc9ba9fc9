"""A conversation in the form that a chat template takes, and the file that stores it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from inflight_client import InflightError

from inflight.common.atomic_files import write_atomic

Messages = list[dict[str, Any]]

MAX_FILE_BYTES = 16 << 20
"""Maximum size of a stored conversation in bytes; servers accept no more either."""


class Conversation:
    """Messages in order: an optional system message, then user and assistant messages in turn."""

    def __init__(self, system: str = "") -> None:
        self.messages: Messages = []
        self.system = system

    @property
    def system(self) -> str:
        """The system message; empty for none."""
        return str(self.messages[0].get("content", "")) if self._first_turn else ""

    @system.setter
    def system(self, text: str) -> None:
        head = [{"role": "system", "content": text}] if text else []
        self.messages = head + self.messages[self._first_turn :]

    @property
    def exchanges(self) -> int:
        """The number of user messages."""
        return len(self._users())

    def with_question(self, text: str) -> Messages:
        """Return the messages to send with the user's next one. `add_exchange` keeps it once it is answered."""
        return [*self.messages, {"role": "user", "content": text}]

    def add_exchange(self, text: str, answer: str) -> None:
        """Keep a user message and its answer, which may be partial."""
        self.messages = [*self.with_question(text), {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Remove all messages except the system message."""
        del self.messages[self._first_turn :]

    def undo(self) -> str | None:
        """Remove the last user message and everything after it; return its text, None if there is none."""
        users = self._users()
        if not users:
            return None
        text = str(self.messages[users[-1]].get("content") or "")
        del self.messages[users[-1] :]
        return text

    def drop(self) -> bool:
        """Remove the oldest user message and its answer; return False if there is none."""
        users = self._users()
        if users:
            del self.messages[self._first_turn : users[1] if len(users) > 1 else None]
        return bool(users)

    def save(self, path: Path) -> None:
        """Write the messages as JSON. Raises InflightError if the file exists and is not a conversation, OSError."""
        if path.exists():
            load_messages(path)
        write_atomic(path, json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", mode=0o600, keep_mode=True)

    def load(self, path: Path) -> None:
        """Replace these messages by those of a file. Raises InflightError `invalid_messages`, OSError."""
        self.messages = load_messages(path)

    @property
    def _first_turn(self) -> int:
        """Return the index of the first message after the system message."""
        return int(bool(self.messages) and self.messages[0]["role"] == "system")

    def _users(self) -> list[int]:
        return [place for place, message in enumerate(self.messages) if message["role"] == "user"]


def load_messages(path: Path) -> Messages:
    """Read messages from a regular file; a pipe or device might never end. Raises InflightError, OSError."""
    path.stat()  # raises an OSError that names the reason
    if not path.is_file():
        raise InflightError(f"{path} is not a regular file; name another file", "invalid_messages")
    with path.open("rb") as file:
        return read_messages(file, str(path))


def read_messages(file: BinaryIO, name: str) -> Messages:
    """Read messages from JSON: a list of objects with a role. Raises InflightError `invalid_messages`, OSError."""
    raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise InflightError(
            f"{name} holds more than {MAX_FILE_BYTES >> 20} MiB, more than any server accepts; name a smaller file",
            "invalid_messages",
        )
    try:
        messages = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InflightError(f"{name} contains no messages: {error}", "invalid_messages") from None
    if isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages
    ):
        return messages
    raise InflightError(
        f'{name} contains no messages; it must be a JSON list of {{"role": "user", "content": "..."}}',
        "invalid_messages",
    )
