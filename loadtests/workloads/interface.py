"""Interfaces of a workload: requests, in sessions of one or more turns, endless or from a file."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request: its prompt (a text, or chat messages) and the maximum tokens of its answer.

    `think` is the number of seconds between the end of the previous turn and the due time. `cancel_after` is the number
    of seconds after sending at which the client disconnects; None: it does not.
    """

    prompt: str | list[Message]
    max_tokens: int
    think_time: float = 0.0
    cancel_after: float | None = None


@dataclass(frozen=True, slots=True)
class TextsRequest:
    """One request to an encoder: texts to embed or classify, or documents to rerank for `query`.

    To transcribe: the path of an audio file, and its language in `query`, if it is known.
    """

    texts: tuple[str, ...]
    query: str = ""
    think_time: float = 0.0
    cancel_after: float | None = None


AnyRequest = RequestSpec | TextsRequest


class Session(Protocol):
    """One user's session: a single request, or the turns of a conversation.

    `due` is its start in seconds since the run's start, if a trace says so; None: the arrivals decide.
    """

    @property
    def number(self) -> int: ...

    @property
    def due(self) -> float | None: ...

    def requests(self) -> Generator[AnyRequest, str, None]:
        """Yield the requests in turn; the text of each answer is sent in, since a later turn may contain it."""
        ...


class Workload(Protocol):
    """Numbered sessions. The same number is always the same session, in any process."""

    def session(self, number: int) -> Session | None:
        """Return the session with that number, from 0; None after the last one."""
        ...
