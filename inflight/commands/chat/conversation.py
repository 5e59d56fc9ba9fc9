"""A conversation: what was said so far, as a chat template takes it, and the file that keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from inflight_client import InflightError

from inflight.common.atomic_files import write_atomic

Messages = list[dict[str, Any]]

MAX_FILE_BYTES = 16 << 20
"""Bytes of a conversation, at most: a server takes no more either."""


class Conversation:
    """Messages in their order: perhaps one of the system, then user and assistant by turns."""

    def __init__(self, system: str = "") -> None:
        self.messages: Messages = []
        self.system = system

    @property
    def system(self) -> str:
        """What the model is told before all else; empty for nothing."""
        return str(self.messages[0].get("content", "")) if self._first_turn else ""

    @system.setter
    def system(self, text: str) -> None:
        head = [{"role": "system", "content": text}] if text else []
        self.messages = head + self.messages[self._first_turn :]

    @property
    def exchanges(self) -> int:
        """How many messages of the user there are."""
        return len(self._users())

    def with_question(self, text: str) -> Messages:
        """The messages to send with the user's next one, which is kept only once it is `answered`."""
        return [*self.messages, {"role": "user", "content": text}]

    def add_exchange(self, text: str, answer: str) -> None:
        """The user's message was answered, perhaps not to its end."""
        self.messages = [*self.with_question(text), {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forget all but the system's message."""
        del self.messages[self._first_turn :]

    def undo(self) -> bool:
        """Forget the user's last message and what came after it; False where there is none."""
        users = self._users()
        if users:
            del self.messages[users[-1] :]
        return bool(users)

    def drop(self) -> bool:
        """Forget the user's oldest message and what was answered; False where there is none."""
        users = self._users()
        if users:
            del self.messages[self._first_turn : users[1] if len(users) > 1 else None]
        return bool(users)

    def save(self, path: Path) -> None:
        """Write the messages as JSON. What stands there and is no conversation stays: InflightError. Else OSError."""
        if path.exists():
            load_messages(path)
        write_atomic(path, json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", mode=0o600, keep_mode=True)

    def load(self, path: Path) -> None:
        """Take a file's messages in place of these. Raises InflightError `invalid_messages`, OSError."""
        self.messages = load_messages(path)

    @property
    def _first_turn(self) -> int:
        """Where the messages behind the system's begin."""
        return int(bool(self.messages) and self.messages[0]["role"] == "system")

    def _users(self) -> list[int]:
        return [place for place, message in enumerate(self.messages) if message["role"] == "user"]


def load_messages(path: Path) -> Messages:
    """A regular file's messages: a pipe or a device may never end. Raises InflightError `invalid_messages`, OSError."""
    path.stat()  # says why there is none
    if not path.is_file():
        raise InflightError(f"{path} is no regular file; name another one", "invalid_messages")
    with path.open("rb") as file:
        return read_messages(file, str(path))


def read_messages(file: BinaryIO, name: str) -> Messages:
    """Messages out of JSON: a list of objects with a role. Raises InflightError `invalid_messages`, OSError."""
    raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise InflightError(
            f"{name} holds more than {MAX_FILE_BYTES >> 20} MiB, which no server takes", "invalid_messages"
        )
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InflightError(f"{name} holds no messages: {error}", "invalid_messages") from None
    if isinstance(found, list) and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in found):
        return found
    raise InflightError(
        f'{name} holds no messages; it must be a JSON list of {{"role": "user", "content": "..."}}', "invalid_messages"
    )
