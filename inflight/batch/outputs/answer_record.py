"""Parses the job's answer lines for tables, CSV and Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.state.line_file import read_lines

ANSWER_FIELDS = ("id", "text", "finish_reason", "input_tokens", "output_tokens")
"""The columns of every answer, in order; kept columns follow."""

_OPENAI = {"id", "custom_id", "response", "error"}


@dataclass(frozen=True)
class AnswerRecord:
    """One answer. `id` has the input's type (a whole number stays one); None for unknown counts."""

    id: Any
    text: str | None
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the values by column; a kept column does not replace a standard one."""
        return {**self.kept, **{name: getattr(self, name) for name in ANSWER_FIELDS}}


def parse_answer(line: bytes) -> AnswerRecord:
    """Parse a plain line, or one in OpenAI's Batch format. Raises ValueError for anything else."""
    values = orjson.loads(line)
    if not isinstance(values, dict):
        raise ValueError("the line is not a JSON object")
    if is_openai_line(values):
        return _parse_openai(values)
    kept = {name: value for name, value in values.items() if name not in ANSWER_FIELDS}
    return AnswerRecord(
        values["id"],
        values.get("text"),
        values.get("finish_reason"),
        values.get("input_tokens"),
        values.get("output_tokens"),
        kept,
    )


def is_openai_line(values: Mapping[str, Any]) -> bool:
    """Return whether an answer or error line is in OpenAI's format; a plain one may have columns of any name."""
    return values.keys() == _OPENAI


def read_answer_records(path: Path | None) -> Iterator[AnswerRecord]:
    """Yield the records of a file of lines, which may be missing. Raises BatchError `job_damaged`."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            yield parse_answer(line)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise BatchError(f"line {number} of {path} is not an answer ({error})", "job_damaged") from None


def batched(answers: Iterable[AnswerRecord], size: int) -> Iterator[list[AnswerRecord]]:
    """Yield the answers in lists of this size."""
    left = iter(answers)
    while part := list(islice(left, size)):
        yield part


def _parse_openai(values: dict[str, Any]) -> AnswerRecord:
    body = values["response"]["body"]
    choice = body["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    usage = body.get("usage") or {}
    return AnswerRecord(
        values["custom_id"],
        text,
        choice.get("finish_reason"),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
    )
