"""Rows of Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, cast

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.job.rows import InputRecord, Position
from inflight.batch.job.spec import FileFormat
from inflight.batch.sources.interface import RowSource
from inflight.batch.storage.files import StoredFile

_ROWS = 256
"""Rows that are in memory at a time."""
_BUFFER = 1 << 20


class ParquetSource(RowSource):
    """A Parquet file, read in small batches, row group by row group. A position is a row's number.

    `needed` are the columns to read, if they exist; None: all.
    """

    format: FileFormat = "parquet"

    def __init__(self, file: StoredFile, needed: frozenset[str] | None = None) -> None:
        self._file = file
        with self._open() as parquet:
            metadata = parquet.metadata
            self._groups: list[int] = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            self.columns = columns = list(parquet.schema_arrow.names)
        self.total = sum(self._groups)
        self.fingerprint = file.fingerprint()
        self._read = [name for name in columns if needed is None or name in needed]
        if double := next((name for name in self._read if columns.count(name) > 1), None):
            raise BatchError(f"{file.shown} has two columns {double!r}; rename one", "input_invalid")

    def fraction_read(self, position: Position) -> float | None:
        return _number(position) / self.total if self.total else None

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        number = 0 if after is None else _number(after)
        ends = list(accumulate(self._groups))
        groups = [group for group, end in enumerate(ends) if end > number]
        if not groups:
            return
        skip = number - (ends[groups[0]] - self._groups[groups[0]])
        with self._open() as parquet:
            for batch in parquet.iter_batches(_ROWS, row_groups=groups, columns=self._read, use_threads=False):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                for values in _rows(batch.slice(skip)):
                    number += 1
                    if isinstance(values, str):
                        yield InputRecord(number, None, number, values)
                    else:
                        yield InputRecord(number, values, number)
                skip = 0

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise package_missing(self._file.shown, error, "pyarrow") from error
        with self._file.open_seekable() as file:
            try:
                # Without pre_buffer, which would keep whole row groups in memory.
                with pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER) as parquet:
                    yield parquet
            except (pyarrow.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                words = " ".join(str(error).split()).rstrip(".")[:300]
                raise BatchError(
                    f"{self._file.shown} is not a complete Parquet file: {words}", "input_invalid"
                ) from None


def _number(position: Position) -> int:
    return int(cast("int", position))


def _rows(batch: Any) -> Iterator[Mapping[str, Any] | str]:
    """Yield the rows' values, or a sentence with what is wrong with a row."""
    try:
        yield from cast("list[dict[str, Any]]", batch.to_pylist())
    except (UnicodeDecodeError, ValueError, OverflowError):
        for place in range(batch.num_rows):
            yield _row(batch, place)


def _row(batch: Any, place: int) -> Mapping[str, Any] | str:
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[place].as_py()
        except UnicodeDecodeError as error:
            return f"the column {name!r} is not UTF-8: {error.reason} at byte {error.start + 1}"
        except (ValueError, OverflowError) as error:  # a time that Python does not have: nanoseconds, the year 12000
            try:
                values[name] = column.slice(place, 1).cast("string")[0].as_py()
            except (ValueError, NotImplementedError):  # a list or an object with such a time
                return f"the column {name!r} has a value that can't be read: {error}"
    return values
