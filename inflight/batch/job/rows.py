"""The rows of a job: as read, as sent, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import orjson
from inflight_client.call import CallOptions, Prompt
from inflight_client.encodings import Classifications, Embeddings, Reranking
from inflight_client.results import Generation
from inflight_client.sampling import Sampling

Text = str | Sequence[int]
"""A text, or the ids of its tokens."""

Position = int | str | Sequence[Any]
"""Where the next row begins. A JSON value that only the source interprets."""


class RowStatus(StrEnum):
    """The final status of a row; each row has exactly one.

    `ok`: answered. `error`: sent, and refused or given up. `dead`: not a valid request (unreadable, without an id, with
    a duplicate id, without the template's values), or a row that crashes engines.
    """

    OK = "ok"
    ERROR = "error"
    DEAD = "dead"


@dataclass(frozen=True)
class InputRecord:
    """A row as a source reads it: its values by name, or an error.

    `line` counts from 1 and is for messages; `position` is where the next row begins.
    """

    line: int
    values: Mapping[str, Any] | None
    position: Position
    error: str = ""


@dataclass(frozen=True)
class GenerateRequest:
    """A call of the client: a prompt and its options. `model`: the model that the row names, if any.

    `as_model`: unset sampling parameters are the model's. `as_chat`: so is whether a text is sent as a conversation.
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    options: CallOptions = field(default_factory=CallOptions)
    """All others."""
    model: str | None = None
    as_model: bool = False
    as_chat: bool = False

    @property
    def text(self) -> str:
        """The text whose prefix rows share if their prompts do."""
        return self.prompt if isinstance(self.prompt, str) else orjson.dumps(self.prompt).decode()

    @property
    def characters(self) -> int:
        return len(self.prompt) if isinstance(self.prompt, str) else sum(len(str(message)) for message in self.prompt)


@dataclass(frozen=True)
class EmbedRequest:
    """Texts to embed: one, or those of a request of OpenAI's API."""

    texts: tuple[Text, ...]
    input_type: str | None = None
    dimensions: int | None = None
    truncate: bool = False
    model: str | None = None

    @property
    def shared(self) -> tuple[object, ...]:
        """What requests must have in common to be sent as one."""
        return (self.input_type, self.dimensions, self.truncate)

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class ClassifyRequest:
    """A text to classify."""

    text: Text
    truncate: bool = False
    model: str | None = None

    @property
    def texts(self) -> tuple[Text, ...]:
        return (self.text,)

    @property
    def shared(self) -> tuple[object, ...]:
        return (self.truncate,)

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class RerankRequest:
    """Documents to score for a query."""

    query: str
    documents: tuple[str, ...]
    truncate: bool = False
    model: str | None = None

    @property
    def characters(self) -> int:
        return len(self.query) * len(self.documents) + sum(map(len, self.documents))


RowRequest = GenerateRequest | EmbedRequest | ClassifyRequest | RerankRequest
"""The request of a row, by its task."""


RowAnswer = Generation | Embeddings | Classifications | Reranking
"""The answer to a row, by its task, for the texts of the row alone."""


@dataclass(frozen=True)
class Row:
    """A valid row. `number` is its place in the input, from 0, counting invalid rows too.

    `context` is data that the row format needs again to write the answer.
    """

    number: int
    line: int
    id: str
    request: RowRequest
    context: Any = None


@dataclass(frozen=True)
class InvalidRow:
    """A row that is not sent: `status` is error (an error line) or dead (a dead letter)."""

    number: int
    line: int
    id: str | None
    code: str
    message: str
    status: RowStatus = RowStatus.DEAD
    context: Any = None


@dataclass(frozen=True)
class RowResult:
    """The final record of a row: `text` is its line in the file of its status, as JSON without the line end.

    `tokens` are those of prompt and answer; `texts` is the number of texts that were embedded, classified or scored;
    `attempts` is how often the row was sent. `empty`: it was answered without any text.
    """

    number: int
    line: int
    id: str | None
    status: RowStatus
    text: bytes
    code: str = ""
    message: str = ""
    tokens: tuple[int, int] = (0, 0)
    attempts: int = 0
    texts: int = 0
    empty: bool = False

    @classmethod
    def of(cls, row: Row | InvalidRow, status: RowStatus, text: bytes, **values: Any) -> Self:
        return cls(row.number, row.line, row.id, status, text, **values)
