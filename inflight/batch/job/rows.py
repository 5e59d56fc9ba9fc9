"""The rows of a job: as read, as sent, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from inflight_client.call import Prompt
from inflight_client.sampling import Sampling

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
class RowRequest:
    """The request of a row, in the client's terms. `model`: the model that the row names, if any."""

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    log_probs: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None


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

    `input_tokens` and `output_tokens` are those of prompt and answer; `attempts` is how often the row was sent.
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
