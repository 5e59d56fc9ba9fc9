"""Rows of CSV: a header with the column names, then one record per row, quoted as in RFC 4180."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InputRecord, Position
from inflight.batch.job.spec import FileFormat
from inflight.batch.sources.file_source import MAX_ROW_BYTES, FileSource, offset_of, skip_line
from inflight.batch.storage.files import Reading, StoredFile
from inflight.common.repeated import first_repeated

_MARK = "sep="
_SAMPLE_ROWS = 50
_LEAST_SHARE = 0.5
"""Of the first rows that must have the header's fields; the others are invalid rows. One with more fields, as with an
unquoted delimiter in its text, counts half."""
_BOM = b"\xef\xbb\xbf"


class CsvSource(FileSource):
    """A CSV file in UTF-8. All values are texts, and all rows have the header's columns.

    The delimiter is the one of `,`, `;`, `|` and tab with which the first rows fit the header, unless a first line such
    as `sep=;` names it. An invalid row (an unclosed quote, too many or too few fields) is reported, and reading
    continues with the line after its first.
    """

    format: FileFormat = "csv"

    def __init__(self, file: StoredFile, delimiter: str | None = None) -> None:
        super().__init__(file)
        self._given = delimiter or ""
        self._delimiter, self._names, self._begin = self._header()
        self.columns = self._names

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        offset, line = self._begin if after is None else offset_of(after)
        names = self._names
        with self._file.reading(offset) as reading:
            lines = _Lines(reading, offset, line)
            reader = self._reader(lines)
            while True:
                first = lines.begin()
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except (csv.Error, UnicodeDecodeError, _TooLongError) as error:
                    fault = _why(error, lines)
                    lines.back_to_second()
                    reader = self._reader(lines)
                    yield InputRecord(first, None, lines.position, fault)
                    continue
                if not fields:
                    continue
                if lines.position[0] >= self._next_offset_record:
                    self._record_offset(reading, lines.position[0])
                if len(fields) == len(names):
                    yield InputRecord(first, dict(zip(names, fields, strict=True)), lines.position)
                else:
                    counted = f"{len(fields)} field{'s' if len(fields) > 1 else ''}, but the header names {len(names)}"
                    yield InputRecord(first, None, lines.position, f"the row has {counted}")

    def _header(self) -> tuple[str, list[str], tuple[int, int]]:
        """Return the delimiter, the names, and where the first row begins."""
        marked = self._delimiter_line()
        delimiters = self._given or (marked or "").rstrip("\r\n").removeprefix(_MARK)
        candidates, faults = [], []
        usual = "\t,;|" if ".tsv" in self._file.address.lower() else ",;\t|"
        for each in delimiters or usual:  # a quoted header is none with other delimiters
            try:
                candidates.append(self._try(each, skip=marked is not None))
            except BatchError as fault:
                faults.append(fault)
        if not candidates:
            raise faults[0]
        # Rows have as many fields as the header. Where several do, more columns are likelier than one.
        _, _, delimiter, names, begin = max(candidates, key=lambda candidate: candidate[:2])
        if not any(names):
            raise BatchError(f"{self._file.shown} has no header; its first line must name the columns", "input_invalid")
        if double := first_repeated(names):
            raise BatchError(
                f"the header of {self._file.shown} names the column {double!r} twice; rename one", "input_invalid"
            )
        return delimiter, names, begin

    def _delimiter_line(self) -> str | None:
        """Return the first line if it is one that spreadsheets write: sep=;"""
        with self._file.reading() as reading:
            try:
                line = next(_Lines(reading, 0, 0), "")
            except (UnicodeDecodeError, _TooLongError):
                return None
        return line if line.startswith(_MARK) and len(line.rstrip("\r\n")) == len(_MARK) + 1 else None

    def _try(self, delimiter: str, skip: bool) -> tuple[bool, float, str, list[str], tuple[int, int]]:
        """Return whether a delimiter makes several columns, how many of the first rows fit, and what the header is."""
        with self._file.reading() as reading:
            lines = _Lines(reading, 0, 0)
            if skip:
                next(lines)
            reader = self._reader(lines, delimiter)
            try:
                names: list[str] = next(reader, [])
                begin = lines.position
            except (csv.Error, UnicodeDecodeError, _TooLongError) as error:
                raise BatchError(
                    f"{self._file.shown} has no valid CSV header: {_why(error, lines)}", "input_invalid"
                ) from None
            rows, fit = 0, 0.0
            with suppress(csv.Error, UnicodeDecodeError, _TooLongError):
                for fields in islice(reader, _SAMPLE_ROWS):
                    rows += 1
                    fit += 1.0 if len(fields) == len(names) else 0.5 if len(fields) > len(names) > 1 else 0.0
        share = fit / rows if rows else 1.0
        return len(names) > 1 and share >= _LEAST_SHARE, share + len(names) * 1e-6, delimiter, names, begin

    def _reader(self, lines: _Lines, delimiter: str | None = None) -> Any:
        csv.field_size_limit(MAX_ROW_BYTES)
        return csv.reader(lines, delimiter=delimiter or self._delimiter, strict=True)


class _TooLongError(Exception):
    pass


class _Lines:
    """Feeds lines to a CSV reader and tracks the position. The lines of a record can be read again."""

    def __init__(self, reading: Reading, offset: int, line: int) -> None:
        self._file = reading.content
        self._again: deque[bytes] = deque()
        self._record: list[bytes] = []
        self._bytes = 0
        self._skipped = 0
        self.position = (offset, line)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        raw = self._again.popleft() if self._again else self._file.readline(MAX_ROW_BYTES + 1)
        if not raw:
            raise StopIteration
        self._record.append(raw)
        self._bytes += len(raw)
        offset, line = self.position
        if self._bytes > MAX_ROW_BYTES:
            if len(self._record) == 1 and not raw.endswith(b"\n"):
                self._skipped = skip_line(self._file)
            self.position = (offset + len(raw) + self._skipped, line + 1)
            raise _TooLongError
        self.position = (offset + len(raw), line + 1)
        return (raw if offset else raw.removeprefix(_BOM)).decode()

    def begin(self) -> int:
        """Start a record; return the number of its first line."""
        self._record, self._bytes, self._skipped = [], 0, 0
        return self.position[1] + 1

    def back_to_second(self) -> None:
        """Read all lines of the record except its first again."""
        again = self._record[1:]
        self._again.extendleft(reversed(again))
        offset, line = self.position
        self.position = (offset - sum(map(len, again)), line - len(again))


def _why(error: Exception, lines: _Lines) -> str:
    if isinstance(error, _TooLongError):
        return f"the row is longer than {MAX_ROW_BYTES >> 20} MiB; is a quote missing that ends a field?"
    if isinstance(error, UnicodeDecodeError):
        return f"line {lines.position[1]} is not UTF-8: {error.reason} at byte {error.start + 1}"
    words = str(error).partition(" - ")[0]
    if "unexpected end of data" in words:
        return "the row is truncated: a quoted field does not end"
    if "new-line character" in words:
        return "its lines end with a carriage return alone; convert it, with `tr '\\r' '\\n'` for example"
    return f"the row is not CSV: {words}"
