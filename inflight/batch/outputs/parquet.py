"""Answers as Parquet, with a schema that fits all answers, and row groups that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.spec import Task
from inflight.batch.outputs.answer_record import ANSWER_FIELDS, AnswerRecord, read_answer_records, vector_of
from inflight.batch.storage.files import StoredFile

_GROUP_ROWS = 16_384
_GROUP_CHARACTERS = 16 << 20
_WHOLE, _LARGE, _NUMBER, _TRUTH, _TEXT = "whole", "large", "number", "truth", "text"
_VECTOR, _NUMBERS, _NUMBER_BY_NAME = "vector", "numbers", "number by name"
_PLACES, _TRUTHS = "places", "truths"
_KINDS: dict[Task, tuple[str, ...]] = {
    "generate": (_TEXT, _TEXT, _WHOLE, _WHOLE),
    "embed": (_VECTOR, _WHOLE, _TRUTH),
    "classify": (_TEXT, _NUMBER, _NUMBER_BY_NAME, _WHOLE, _TRUTH),
    "rerank": (_NUMBERS, _PLACES, _WHOLE, _TRUTH),
    "score": (_NUMBERS, _PLACES, _PLACES, _TRUTHS, _WHOLE),
    "text2text": (_TEXT, _WHOLE, _WHOLE, _TRUTH),
    "transcribe": (_TEXT, _TEXT, _NUMBER, _TEXT),
}
"""The kinds of the columns of a task after the id, in the order of ANSWER_FIELDS."""
_EXACT = 2**53
"""Largest integer that a column of 64-bit floats (IEEE 754) represents exactly."""


class ParquetOutputFormat:
    """Writes answers as Parquet. The answers are read twice: for the types of the columns, and to write them.

    `id` is an integer column if all ids are integers. Kept columns are integers, floats, booleans or texts (JSON for
    other or mixed types). An embedding is a list of float32 values of a fixed size.
    """

    def __init__(self, keep: Sequence[str], shown: str, task: Task) -> None:
        self._task = task
        self._keep = [name for name in keep if name not in ANSWER_FIELDS[task]]
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:  # raised also for incompatible versions of NumPy
            raise package_missing(shown, error, "pyarrow") from error

    def write(self, answers: Path | None, file: IO[bytes]) -> None:
        import pyarrow as pa

        try:
            self._write(answers, file)
        except pa.ArrowException as error:
            raise BatchError(
                f"the answers can't be written as Parquet ({error}); they are in {answers}", "output_invalid"
            ) from error

    def _write(self, answers: Path | None, file: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = self._kinds(read_answer_records(answers, self._task))
        types = {_WHOLE: pa.int64(), _NUMBER: pa.float64(), _TRUTH: pa.bool_(), _TEXT: pa.string()}
        types |= {_NUMBERS: pa.list_(pa.float64()), _PLACES: pa.list_(pa.int32()), _TRUTHS: pa.list_(pa.bool_())}
        types |= {_NUMBER_BY_NAME: pa.map_(pa.string(), pa.float64())}
        if self._task == "embed":
            first = next(read_answer_records(answers, self._task), None)
            types[_VECTOR] = pa.list_(pa.float32(), 0 if first is None else len(vector_of(first.content)))
        schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(read_answer_records(answers, self._task)):
                values = [answer.as_dict() for answer in group]
                columns = [
                    _column([row.get(name) for row in values], kind, types[kind]) for name, kind in kinds.items()
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))

    def read(self, file: StoredFile) -> Iterator[tuple[str, Any]]:
        import pyarrow.parquet as pq

        main = ANSWER_FIELDS[self._task][1]
        with file.open_seekable() as opened:
            for batch in pq.ParquetFile(opened).iter_batches(batch_size=1000, columns=["id", main]):
                ids, column = (batch.column(batch.schema.get_field_index(name)) for name in ("id", main))
                if self._task == "embed":
                    contents = column.flatten().to_numpy(zero_copy_only=False).reshape(len(ids), -1)
                else:
                    contents = column.to_pylist()
                for id_, content in zip(ids.to_pylist(), contents, strict=True):
                    yield str(id_), content

    def _kinds(self, answers: Iterator[AnswerRecord]) -> dict[str, str]:
        """Return the narrowest type of each column that fits all its values."""
        fixed = dict(zip(ANSWER_FIELDS[self._task][1:], _KINDS[self._task], strict=True))
        seen: dict[str, set[str]] = {name: set() for name in ("id", *self._keep)}
        for answer in answers:
            seen["id"].add(_kind(answer.id))
            for name in self._keep:
                if (value := answer.kept.get(name)) is not None:
                    seen[name].add(_kind(value))
        return {"id": _common(seen.pop("id")), **fixed, **{name: _common(kinds) for name, kinds in seen.items()}}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return _TRUTH
    if isinstance(value, int):
        if abs(value) <= _EXACT:
            return _WHOLE
        return _LARGE if -(2**63) <= value < 2**63 else _TEXT
    return _NUMBER if isinstance(value, float) else _TEXT


def _common(kinds: set[str]) -> str:
    if kinds and kinds <= {_WHOLE, _LARGE}:
        return _WHOLE
    if kinds == {_WHOLE, _NUMBER}:
        return _NUMBER
    return kinds.pop() if len(kinds) == 1 else _TEXT


def _column(values: list[Any], kind: str, type_: Any) -> Any:
    """Return the values as a column of this kind and type."""
    import pyarrow as pa

    if kind == _VECTOR:
        import numpy as np

        flat = pa.array(np.concatenate([vector_of(value) for value in values]))
        return pa.FixedSizeListArray.from_arrays(flat, type_.list_size)
    if kind == _NUMBER_BY_NAME:
        values = [None if value is None else list(value.items()) for value in values]
    if kind == _TEXT:
        values = [
            value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values
        ]
    return pa.array(values, type_)


def _length(value: Any) -> int:
    """Return the approximate size in memory, in characters."""
    if value is None or isinstance(value, (int, float)):
        return 8
    return len(value) if isinstance(value, str) else len(orjson.dumps(value))


def _groups(answers: Iterator[AnswerRecord]) -> Iterator[list[AnswerRecord]]:
    group: list[AnswerRecord] = []
    size = 0
    for answer in answers:
        group.append(answer)
        size += _length(answer.content) + sum(map(_length, answer.kept.values()))
        if len(group) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group
