"""Answers as CSV or TSV: UTF-8, with a header, and quotes if a text contains a separator or line end (RFC 4180)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import orjson

from inflight.batch.job.spec import Task
from inflight.batch.outputs.answer_record import ANSWER_FIELDS, read_answer_records, vector_of
from inflight.batch.storage.files import StoredFile

_MAX_FIELD_CHARACTERS = 2**31 - 1


class CsvOutputFormat:
    """Writes answers as CSV. A missing value is an empty field; values that are neither text nor number are JSON."""

    def __init__(self, keep: Sequence[str], separator: str, task: Task) -> None:
        self._task, fields = task, ANSWER_FIELDS[task]
        self._columns = [*fields, *(name for name in keep if name not in fields)]
        self._separator = separator

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        rows = csv.writer(text, delimiter=self._separator, lineterminator="\n")
        rows.writerow(self._columns)
        for answer in read_answer_records(answers, self._task):
            values = answer.as_dict()
            if self._task == "embed":
                values["embedding"] = vector_of(answer.content)
            rows.writerow([_field(values.get(name)) for name in self._columns])
        text.flush()
        text.detach()  # the caller closes the file

    def read(self, file: StoredFile) -> Iterator[tuple[str, Any]]:
        csv.field_size_limit(_MAX_FIELD_CHARACTERS)
        with file.reading() as reading:
            text = io.TextIOWrapper(cast("Any", reading.content), encoding="utf-8", newline="")
            try:
                rows = csv.reader(text, delimiter=self._separator, strict=True)
                if next(rows, None) != self._columns:
                    raise ValueError("its header is another")
                for row in rows:
                    yield row[0], _content(row[1], self._task)
            except (csv.Error, IndexError) as error:
                raise ValueError(str(error)) from error
            finally:
                text.detach()


def _field(value: Any) -> Any:
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _content(field: str, task: Task) -> Any:
    """Return the answer itself as in its record."""
    return orjson.loads(field) if task in ("embed", "rerank") else field
