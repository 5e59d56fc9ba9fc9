"""The lines of a potentially large file: kept as bytes and parsed one by one; errors name the line."""

from __future__ import annotations

import csv
import io
import json
import reprlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loadtests.errors import LoadError
from loadtests.json_files import is_deep

_BOM = b"\xef\xbb\xbf"
# Maximum nesting: deeper than any request, and far below the interpreter's recursion limit.
_MAX_DEPTH = 100
_TOO_LONG = "a number has thousands of digits"
_SHORT = reprlib.Repr()
_SHORT.maxstring = 60


class RowError(Exception):
    """What is wrong with a line; the message follows the line number."""


class JsonLines:
    """JSON objects, one per line; empty lines are ignored. A file with one JSON array is also accepted.

    `skipped`: a sentence about the lines that `keep_valid` left out, if any. Raises LoadError for a file without any
    object.
    """

    skipped = ""

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        self._data = _as_lines(data, name)
        ends = np.flatnonzero(np.frombuffer(self._data, dtype=np.uint8) == ord("\n"))
        if not self._data.endswith(b"\n"):
            ends = np.append(ends, len(self._data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        full = np.array([bool(self._data[a:b].strip()) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])
        self._numbers = np.flatnonzero(full)
        self._starts, self._ends = starts[full], ends[full]
        if not len(self):
            raise LoadError(f"{name} is empty; it needs at least one line", "workload_invalid")

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, row: int) -> dict[str, Any]:
        """Return the object in row 0, 1, ... Raises LoadError for anything else."""
        line = self._data[self._starts[row] : self._ends[row]]
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise self.error(row, f"is not UTF-8 from its byte {error.start + 1} on") from None
        except json.JSONDecodeError as error:
            raise self.error(row, f"is truncated or not valid JSON: {error.msg} at character {error.pos + 1}") from None
        except ValueError:  # raised for integers with more than 4300 digits
            raise self.error(row, f"can't be read: {_TOO_LONG}") from None
        except RecursionError:
            raise self.error(row, "is nested too deeply") from None
        if line.count(b"[") + line.count(b"{") > _MAX_DEPTH and is_deep(value, _MAX_DEPTH):
            raise self.error(row, "is nested too deeply")
        if not isinstance(value, dict):
            raise self.error(row, "is not a JSON object")
        return value

    def keep_valid(self, parse: Callable[[dict[str, Any]], object]) -> None:
        """Leave out the rows that are no objects, and those for which `parse` raises RowError. Raises LoadError if all
        are such."""
        first: LoadError | None = None
        valid = np.ones(len(self), dtype=bool)
        for row in range(len(self)):
            try:
                parse(self.read(row))
            except (RowError, LoadError) as error:
                valid[row] = False
                first = first or (error if isinstance(error, LoadError) else self.error(row, str(error)))
        if first is None:
            return
        if not valid.any():
            raise first
        self.skipped = f"{(~valid).sum()} of {len(self)} lines are left out; the first: {first}"
        self._numbers, self._starts, self._ends = self._numbers[valid], self._starts[valid], self._ends[valid]

    def error(self, row: int, what: str) -> LoadError:
        """Return an error that names the line."""
        return LoadError(f"{self._name}, line {self._numbers[row] + 1}, {what}", "workload_invalid")


def shorten(value: object) -> str:
    """Return a value of a file, short enough for a sentence."""
    return _SHORT.repr(value)


def decoded(data: bytes, name: str) -> str:
    """Return the text of a file. Raises LoadError, with the line, if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LoadError(f"{name}, line {line}, is not UTF-8; write the file in UTF-8", "workload_invalid") from None


def csv_rows(data: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty rows of a CSV file, each with its line number. Raises LoadError, with the line."""
    reader = csv.reader(io.StringIO(decoded(data, name), newline=""))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise LoadError(f"{name}, line {reader.line_num}, is not valid CSV: {error}", "workload_invalid") from None


def _as_lines(data: bytes, name: str) -> bytes:
    """Return the data without a byte order mark, and a JSON array as one line per entry."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise LoadError(f"{name} is UTF-16; write the file in UTF-8", "workload_invalid")
    data = data.removeprefix(_BOM)
    if data[:100].lstrip()[:1] != b"[":
        return data
    try:
        entries = json.loads(decoded(data, name))
        return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LoadError(f"{name} begins as a JSON array but is not valid JSON: {error}", "workload_invalid") from None
    except ValueError:
        raise LoadError(f"{name} can't be read: {_TOO_LONG}", "workload_invalid") from None
