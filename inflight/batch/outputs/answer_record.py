"""Parses the job's answer lines for tables, CSV and Parquet files."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import Task
from inflight.batch.state.line_file import read_lines

if TYPE_CHECKING:
    from inflight_client.encodings import Vectors

ANSWER_FIELDS: dict[Task, tuple[str, ...]] = {
    "generate": ("id", "text", "finish_reason", "input_tokens", "output_tokens"),
    "embed": ("id", "embedding", "input_tokens", "truncated"),
    "classify": ("id", "label", "score", "scores", "input_tokens", "truncated"),
    "rerank": ("id", "scores", "ranking", "input_tokens", "truncated"),
    "score": ("id", "log_probs", "tokens", "bytes", "is_greedy", "input_tokens"),
    "text2text": ("id", "text", "finish_reason", "output_tokens", "input_tokens", "truncated"),
    "transcribe": ("id", "text", "language", "duration", "segments"),
}
"""The columns of every answer by task, in order; the second is the answer itself. Kept columns follow."""

_OPENAI = {"id", "custom_id", "response", "error"}


@dataclass(frozen=True)
class AnswerRecord:
    """One answer. `id` has the input's type (a whole number stays one); `values` are those of the task's other fields,
    of which unknown ones may be missing. A vector is a list of numbers, or base64 of its float32 values."""

    id: Any
    content: Any
    values: Mapping[str, Any]
    kept: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the values by column; a kept column does not replace a standard one."""
        return {**self.kept, **self.values, "id": self.id}


def parse_answer(line: bytes, task: Task = "generate") -> AnswerRecord:
    """Parse a plain line, or one in OpenAI's Batch format. Raises ValueError for anything else."""
    values = orjson.loads(line)
    if not isinstance(values, dict):
        raise ValueError("the line is not a JSON object")
    fields = ANSWER_FIELDS[task]
    if is_openai_line(values):
        id_, contents = _parse_openai(values)
        return AnswerRecord(id_, contents[fields[1]], contents)
    contents = {name: values.get(name) for name in fields[1:]}
    kept = {name: value for name, value in values.items() if name not in fields}
    return AnswerRecord(values["id"], contents[fields[1]], contents, kept)


def is_openai_line(values: Mapping[str, Any]) -> bool:
    """Return whether an answer or error line is in OpenAI's format; a plain one may have columns of any name."""
    return values.keys() == _OPENAI


def vector_of(value: Any) -> Vectors:
    """Return a vector of an answer as float32 values (little endian). Raises ValueError."""
    import numpy as np

    return (
        np.frombuffer(base64.b64decode(value, validate=True), "<f4")
        if isinstance(value, str)
        else np.asarray(value, "<f4")
    )


def same_content(first: Any, other: Any, task: Task) -> bool:
    """Return whether two answers of a task are the same."""
    if task != "embed":
        return bool(first == other)
    import numpy as np

    return np.array_equal(vector_of(first), vector_of(other))


def read_answer_records(path: Path | None, task: Task = "generate") -> Iterator[AnswerRecord]:
    """Yield the records of a file of lines, which may be missing. Raises BatchError `job_damaged`."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            yield parse_answer(line, task)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise BatchError(f"line {number} of {path} is not an answer ({error})", "job_damaged") from None


def batched(answers: Iterable[AnswerRecord], size: int) -> Iterator[list[AnswerRecord]]:
    """Yield the answers in lists of this size."""
    left = iter(answers)
    while part := list(islice(left, size)):
        yield part


def _parse_openai(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    body = values["response"]["body"]
    usage = body.get("usage") or {}
    contents = {"input_tokens": usage.get("prompt_tokens")}
    if "data" in body:
        (item,) = body["data"]
        return values["custom_id"], contents | {"embedding": item["embedding"], "truncated": item.get("truncated")}
    choice = body["choices"][0]
    text = choice["message"].get("content") if "message" in choice else choice["text"]
    contents |= {"finish_reason": choice.get("finish_reason"), "output_tokens": usage.get("completion_tokens")}
    return values["custom_id"], contents | {"text": text}
