"""Observed numbers to draw from: a file of numbers, or a column of a trace."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence

from loadtests.errors import LoadError
from loadtests.workloads.json_lines import JsonLines, decoded, shorten

_INPUT = ("input_length", "ContextTokens", "Request tokens")
_OUTPUT = ("output_length", "GeneratedTokens", "Response tokens")
# The default columns of each field.
COLUMNS = {"input_tokens": _INPUT, "turn_tokens": _INPUT, "output_tokens": _OUTPUT}


def file_and_column(reference: str) -> tuple[str, str]:
    """Split FILE#COLUMN; the column is empty if it is not given."""
    file, _, column = reference.partition("#")
    return file, column


def read_numbers(data: bytes, reference: str, field: str) -> Sequence[float]:
    """Read the numbers in `FILE` (one per line), or in `FILE#COLUMN` of a CSV or JSON Lines file.

    The default column is that of the known traces for the field. Raises LoadError for a file without numbers, or with
    negative ones.
    """
    name, column = file_and_column(reference)
    wanted = (column,) if column else COLUMNS.get(field, ())
    start = data[:100].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        found = _from_json(JsonLines(data, name), wanted, name)
    else:
        found = _from_rows(decoded(data, name), wanted, name)
    if not found:
        raise LoadError(f"{name} is empty; it needs at least one number", "workload_invalid")
    return found


def _from_json(lines: JsonLines, wanted: Sequence[str], name: str) -> list[float]:
    column = next((column for column in wanted if column in lines.read(0)), None)
    if column is None:
        raise _no_column(name, wanted, list(lines.read(0)))
    found: list[float] = []
    for row in range(len(lines)):
        value = lines.read(row).get(column)
        number = _number(value)
        if number is None:
            raise lines.error(row, _value_error(value, column))
        found.append(number)
    return found


def _from_rows(text: str, wanted: Sequence[str], name: str) -> list[float]:
    found: list[float] = []
    position: int | None = None
    for line, row in _rows(text, name):
        if position is None and not found and not _is_number(row[0]):
            position = next((row.index(column) for column in wanted if column in row), None)
            if position is None:
                raise _no_column(name, wanted, row)
            continue
        value = row[position or 0] if (position or 0) < len(row) else None
        number = _number(value)
        if number is None:
            raise LoadError(f"{name}, line {line}, {_value_error(value, 'the number')}", "workload_invalid")
        found.append(number)
    return found


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty rows of a CSV file, each with its line number."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise LoadError(f"{name}, line {reader.line_num}, is not valid CSV: {error}", "workload_invalid") from None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _value_error(value: object, column: str) -> str:
    return f"has {shorten(value)} as {column}; it must be a number from 0 to 1e308"


def _no_column(name: str, wanted: Sequence[str], columns: Sequence[str]) -> LoadError:
    there = ", ".join(columns[:10])
    if wanted:
        return LoadError(f"{name} has no column {' or '.join(wanted)}; it has {there}", "workload_invalid")
    return LoadError(f"{name} has columns; name one, such as {name}#{columns[0]}; it has {there}", "workload_invalid")
