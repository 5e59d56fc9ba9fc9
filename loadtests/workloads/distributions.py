"""Distributions that users can write as text: of lengths in tokens, turns or seconds."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtests.errors import LoadError
from loadtests.workloads.json_lines import JsonLines, csv_rows, shorten

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})?\.\.(?P<high>{_NUMBER})?")
_TRACE = "trace:"
_MAX_VALUE = 1e7
_SHAPES = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2, "exponential": 1}
_SYNTAX_HELP = (
    "write a number, fixed:128, uniform:16,256, normal:128,32 (mean, deviation), lognormal:128,0.5 (median, deviation "
    "of the logarithm), exponential:128 (mean) or trace:FILE, optionally with bounds (normal:128,32,1..256)"
)


@dataclass(frozen=True)
class Distribution:
    """A distribution of non-negative numbers, drawn from `draw` and clipped to `low` and `high`.

    Integers come from `draw_whole` if that is a different draw, and are rounded.
    """

    draw: Callable[[random.Random], float]
    low: float = 0.0
    high: float = _MAX_VALUE
    draw_whole: Callable[[random.Random], float] | None = None

    def draw_number(self, source: random.Random) -> float:
        return min(max(self.draw(source), self.low), self.high)

    def at_most(self, maximum: float | None) -> Distribution:
        """Return the same distribution with a lower upper bound; None: with its own."""
        return self if maximum is None else replace(self, low=min(self.low, maximum), high=min(self.high, maximum))

    def draw_integer(self, source: random.Random) -> int:
        """Return a drawn number rounded to an integer, at least 1."""
        drawn = (self.draw_whole or self.draw)(source)
        return max(1, math.floor(min(max(drawn, self.low), self.high) + 0.5))


def parse_distribution(text: str, field: str, observed: Callable[[str], Sequence[float]]) -> Distribution:
    """Parse the distribution `text` of a field; `observed` reads the numbers of `trace:FILE`.

    `fixed:V`; `uniform:A,B`: uniform, for integers including both ends; `normal:MEAN,SD`; `lognormal:MEDIAN,SIGMA`: its
    logarithm is normal with deviation SIGMA, so the mean is MEDIAN * exp(SIGMA^2 / 2); `exponential:MEAN`;
    `trace:FILE`: one of the numbers in the file, each with equal probability. Bounds clip, they do not draw again; ten
    million is the maximum. Raises LoadError for any other text.
    """
    body, low, high = _without_bounds(text.strip())
    if low > high:
        raise _invalid_distribution(field, text, "the lower bound is above the upper one")
    if body.startswith(_TRACE):
        seen = observed(body.removeprefix(_TRACE))
        return Distribution(lambda source: seen[int(source.random() * len(seen))], low, high)
    kind, _, rest = body.rpartition(":")
    values = [part.strip() for part in rest.split(",")]
    shape = kind or "fixed"
    if shape not in _SHAPES or len(values) != _SHAPES[shape] or not all(re.fullmatch(_NUMBER, v) for v in values):
        raise _invalid_distribution(field, text, _SYNTAX_HELP)
    numbers = [float(value) for value in values]
    if max(numbers) > _MAX_VALUE:
        raise _invalid_distribution(field, text, f"numbers go up to {_MAX_VALUE:.0f}")
    if shape == "uniform" and numbers[0] > numbers[1]:
        raise _invalid_distribution(field, text, "its first number is above its second one")
    if shape == "lognormal" and not (numbers[0] > 0 and numbers[1] <= 10):
        raise _invalid_distribution(field, text, "a lognormal's median is above 0 and its deviation at most 10")
    whole = _draw("uniform", (numbers[0] - 0.5, numbers[1] + 0.5)) if shape == "uniform" else None
    return Distribution(_draw(shape, numbers), low, high, whole)


def trace_reference(text: str) -> str | None:
    """Return the FILE of `trace:FILE`; None for another distribution."""
    body, _, _ = _without_bounds(text.strip())
    return body.removeprefix(_TRACE) if body.startswith(_TRACE) else None


def _without_bounds(text: str) -> tuple[str, float, float]:
    """Return the distribution without the bounds after its last comma, and the bounds."""
    body, _, last = text.rpartition(",")
    bounds = _RANGE.fullmatch(last.strip())
    if not (body and bounds):
        return text, 0.0, _MAX_VALUE
    return body, float(bounds["low"] or 0.0), min(float(bounds["high"] or _MAX_VALUE), _MAX_VALUE)


def _draw(shape: str, numbers: Sequence[float]) -> Callable[[random.Random], float]:
    first, last = numbers[0], numbers[-1]
    match shape:
        case "uniform":
            return lambda source: source.uniform(first, last)
        case "normal":
            return lambda source: source.gauss(first, last)
        case "lognormal":
            return lambda source: source.lognormvariate(math.log(first), last)
        case "exponential":
            return lambda source: source.expovariate(1.0) * first
        case _:
            return lambda source: first


def _invalid_distribution(field: str, text: str, why: str) -> LoadError:
    return LoadError(f"{field} {text!r} can't be used: {why}", "workload_invalid")


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
    columns = (column,) if column else COLUMNS.get(field, ())
    start = data[:100].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        numbers = _from_json(JsonLines(data, name), columns, name)
    else:
        numbers = _from_rows(data, columns, name)
    if not numbers:
        raise LoadError(f"{name} is empty; it needs at least one number", "workload_invalid")
    return numbers


def _from_json(lines: JsonLines, columns: Sequence[str], name: str) -> list[float]:
    column = next((column for column in columns if column in lines.read(0)), None)
    if column is None:
        raise _no_column(name, columns, list(lines.read(0)))
    numbers: list[float] = []
    for row in range(len(lines)):
        value = lines.read(row).get(column)
        number = _number(value)
        if number is None:
            raise lines.error(row, _value_error(value, column))
        numbers.append(number)
    return numbers


def _from_rows(data: bytes, columns: Sequence[str], name: str) -> list[float]:
    numbers: list[float] = []
    position: int | None = None
    for line, row in csv_rows(data, name):
        if position is None and not numbers and not _is_number(row[0]):
            position = next((row.index(column) for column in columns if column in row), None)
            if position is None:
                raise _no_column(name, columns, row)
            continue
        value = row[position or 0] if (position or 0) < len(row) else None
        number = _number(value)
        if number is None:
            raise LoadError(f"{name}, line {line}, {_value_error(value, 'the number')}", "workload_invalid")
        numbers.append(number)
    return numbers


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


def _no_column(name: str, expected: Sequence[str], columns: Sequence[str]) -> LoadError:
    there = ", ".join(columns[:10])
    if expected:
        return LoadError(f"{name} has no column {' or '.join(expected)}; it has {there}", "workload_invalid")
    return LoadError(f"{name} has columns; name one, such as {name}#{columns[0]}; it has {there}", "workload_invalid")
