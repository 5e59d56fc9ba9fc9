"""The rows of a job: as they are read, as they are asked, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from inflight_client.call import Prompt
from inflight_client.sampling import Sampling

Position = int | str | Sequence[Any]
"""Where the next row begins, as a source knows it: JSON values that only the source itself reads."""


class RowStatus(StrEnum):
    """What a row ends as; each row as exactly one of them.

    `ok`: answered. `error`: asked properly, and refused or given up. `dead`: no request at all (not readable, no id, an
    id that was there before, a template without its values), or a row that kills engines.
    """

    OK = "ok"
    ERROR = "error"
    DEAD = "dead"


@dataclass(frozen=True)
class InputRecord:
    """A row as a source reads it: its values by name, or why there are none.

    `line` counts from 1 and is what people are told; `position` is where the row after it begins.
    """

    line: int
    values: Mapping[str, Any] | None
    position: Position
    error: str = ""


@dataclass(frozen=True)
class RowRequest:
    """What a row wants of the model, as the client takes it. `model`: the one that it names, where it does."""

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    log_probs: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None


@dataclass(frozen=True)
class Row:
    """A row that can be asked. `number` is its place in the input, from 0, with those that can't be asked counted.

    `about` is what the form that made the row wants to know again when the answer is written.
    """

    number: int
    line: int
    id: str
    request: RowRequest
    context: Any = None


@dataclass(frozen=True)
class InvalidRow:
    """A row that is not asked: `kind` is error (it gets an error line) or dead (a line of the dead letters)."""

    number: int
    line: int
    id: str | None
    code: str
    message: str
    status: RowStatus = RowStatus.DEAD
    context: Any = None


@dataclass(frozen=True)
class RowResult:
    """The one terminal record of a row: `text` is its line in the file of its kind, JSON without the line's end.

    `tokens` are those of prompt and answer; `attempts` how often the row was sent.
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
