"""A golden set: the rows of an input with their references, in order."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from inflight_client.validation import shorten

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import EmbedRequest, GenerateRequest, InvalidRow, RowRequest, ScoreRequest, Text
from inflight.batch.job.spec import Job
from inflight.batch.row_formats.factory import read_rows
from inflight.batch.row_formats.lines import column_names, decode_binary, to_json
from inflight.batch.sources.factory import open_source


@dataclass(frozen=True)
class GoldenRow:
    """A row: its `digest` is the SHA-256 of its id and all its values, in which their order does not matter. `request`
    is its prompt, or its conversation as JSON; `values` are its columns."""

    line: int
    id: str
    digest: str
    references: tuple[str, ...]
    request: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def read_golden(
    job: Job, reference: str | None, most: float = math.inf, choices: str | None = None
) -> Iterator[GoldenRow]:
    """Yield the rows of a job's input. `reference`: the column with the references, of which a row has one or, in a
    list, up to `most`; with `choices`, the column of a row's choices, references are the places of right ones there.

    Raises BatchError `input_invalid` for a row that can't be sent or has no reference, and those of the input.
    """
    for record, row in read_rows(job, open_source(job.input)):
        where = f"line {row.line} of {job.input.shown}"
        if record.values is None or row.id is None or isinstance(row, InvalidRow):
            assert isinstance(row, InvalidRow)
            raise BatchError(
                f"{where} is not a row of a golden set: {row.message}; correct it, or remove it", "input_invalid"
            )
        values = decode_binary(record.values)
        text = orjson.dumps([row.id, to_json(values)], option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        references = () if reference is None else _references(values, reference, most, where)
        if choices is not None:
            references = tuple(_place(reference, values.get(choices), choices, where) for reference in references)
        shown = tuple(map(_text, references))
        if choices is None and isinstance(row.request, ScoreRequest):
            _check_continuation(row.request.continuations, shown, where)
        yield GoldenRow(row.line, row.id, hashlib.sha256(text).hexdigest(), shown, _shown(row.request), values)


def _shown(request: RowRequest) -> str:
    """Return the prompt, or the text that passages are searched for."""
    if isinstance(request, GenerateRequest):
        return request.text
    return str(request.texts[0]) if isinstance(request, EmbedRequest) else ""


def _check_continuation(continuations: Sequence[Text], references: Sequence[str], where: str) -> None:
    if all(isinstance(each, str) for each in continuations) and continuations != references:
        raise BatchError(
            f"{where} has texts to score that are not its reference, such as {shorten(continuations[0])}; make a"
            " reference in brackets a list with that one text, or name the texts' column with --reference",
            "input_invalid",
        )


def _references(values: Mapping[str, Any], column: str, most: float, where: str) -> tuple[Any, ...]:
    value = values.get(column)
    if value is None:
        raise BatchError(
            f"{where} has no reference: its column {column!r} is missing or null, and it has {column_names(values)};"
            " add it, or name another with --reference",
            "input_invalid",
        )
    found = tuple(value if isinstance(value, list | tuple) else [value])
    if not 0 < len(found) <= most:
        raise BatchError(
            f"{where} has {len(found)} references; it must have one{' or more' * (most > 1)} for these metrics",
            "input_invalid",
        )
    return found


def _place(reference: Any, choices: Any, column: str, where: str) -> int:
    """Return the place of the right choice, which is given as such or as the choice itself: a number is a place."""
    if isinstance(choices, str):
        with suppress(orjson.JSONDecodeError):
            choices = orjson.loads(choices)
    if isinstance(choices, list) and len(choices) > 1 and all(isinstance(each, str) for each in choices):
        if reference in choices:
            return choices.index(reference)
        if _text(reference) in (places := [str(place) for place in range(len(choices))]):
            return places.index(_text(reference))
        raise BatchError(
            f"{where} has the reference {shorten(reference)}; it must be one of its {len(choices)} choices, or a place"
            f" from 0 to {len(choices) - 1}",
            "input_invalid",
        )
    raise BatchError(
        f"{where} has {shorten(choices)} in its column {column!r}; it must be a list of two or more texts",
        "input_invalid",
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(to_json(value)).decode()


class GoldenSet:
    """The hash of a golden set, row by row: of ids, values and order."""

    def __init__(self) -> None:
        self.rows, self._hash = 0, hashlib.sha256()

    def add(self, row: GoldenRow) -> None:
        self.rows += 1
        self._hash.update(f"{row.digest}\n".encode())

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()
