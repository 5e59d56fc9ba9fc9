"""Reads JSON files of a run, which a kill, a full disk or an edit may have damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtests.errors import LoadError

_BUFFER = 2**20
_MAX_DEPTH = 50
"""Maximum nesting: deeper than anything that is written, and far below the interpreter's recursion limit."""


def read_object(file: Path) -> dict[str, Any]:
    """Return the single object of a file. Raises FileNotFoundError, and LoadError `run_damaged` for anything else."""
    try:
        value = _EXACT.decode(file.read_text())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise LoadError(f"{file} can't be read: {error}", "run_damaged") from None
    except RecursionError:
        value = None
    if not isinstance(value, dict) or is_deep(value, _MAX_DEPTH):
        raise LoadError(f"{file} must hold one JSON object, and not be nested deeply", "run_damaged")
    return value


def read_objects(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line lazily; nothing if the file is missing.

    A truncated last line is skipped. Raises LoadError `run_damaged` for any other line that is not an object.
    """
    try:
        with file.open("rb", buffering=_BUFFER) as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    yield number, _object(line, f"{file}, line {number},")
    except FileNotFoundError:
        return
    except OSError as error:
        raise LoadError(f"{file} can't be read: {error.strerror}", "run_damaged") from None


def finite(value: Any) -> float:
    """Return the value as a float. Raises TypeError, ValueError or OverflowError unless it is a finite number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def _object(line: bytes, name: str) -> dict[str, Any]:
    try:
        value = _LINES.decode(line.decode())
    except ValueError as error:
        raise LoadError(f"{name} is not valid JSON: {error}", "run_damaged") from None
    except RecursionError:
        raise LoadError(f"{name} is nested too deeply", "run_damaged") from None
    if not isinstance(value, dict):
        raise LoadError(f"{name} is not a JSON object", "run_damaged")
    return value


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


def is_deep(value: Any, max_depth: int) -> bool:
    """Return whether objects and arrays are nested at least this deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max_depth == 0 or any(is_deep(part, max_depth - 1) for part in inner)


# Created once, because creating it takes longer than decoding a line.
_LINES = json.JSONDecoder(parse_constant=_reject_constant)
_EXACT = json.JSONDecoder(parse_constant=_reject_constant, parse_float=finite)
