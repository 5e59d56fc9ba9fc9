"""What is asked of the server: requests, in sessions of one or more turns, without end or from a file."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request: its prompt (a text, or chat messages) and the longest answer, in tokens.

    `think` is how many seconds after the end of the turn before it is due. `cancel_after`: so many seconds after
    sending the client goes away, whatever came until then; None: it stays.
    """

    prompt: str | list[Message]
    max_tokens: int
    think_time: float = 0.0
    cancel_after: float | None = None


class Session(Protocol):
    """One user's visit: a single request, or the turns of a conversation.

    `due` is when it begins, in seconds since the run's start, where a trace says so; None: the arrivals say it.
    """

    @property
    def number(self) -> int: ...

    @property
    def due(self) -> float | None: ...

    def requests(self) -> Generator[RequestSpec, str, None]:
        """The requests in turn; the text of each answer is sent in, for a later turn may hold it."""
        ...


class Workload(Protocol):
    """Numbered sessions. The same number is always the same session, whichever process asks for it."""

    def session(self, number: int) -> Session | None:
        """The session of that number, from 0; None behind the last one."""
        ...
