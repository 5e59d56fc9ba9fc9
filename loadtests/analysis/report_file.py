"""Writes and reads the figures as files: `report.json` and `sweep.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from inflight.common.schema.validation_errors import first_error
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep
from loadtests.errors import LoadError
from loadtests.json_files import read_object

Figures = TypeVar("Figures", Summary, Sweep)

FORMAT = 1
"""Version of the format; increased when older readers would misread the figures."""


def write_figures(figures: Summary | Sweep, path: Path) -> Path:
    """Write a run's `report.json` or a sweep's `sweep.json`. Raises LoadError `load_failed` if it can't be written."""
    text = json.dumps({"format": FORMAT, **figures.as_json()}, indent=2, allow_nan=False)
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise LoadError(f"{path} can't be written: {error.strerror}", "load_failed") from None
    return path


def read_figures(path: Path, kind: type[Figures]) -> Figures:
    """Read a file of this kind. Raises LoadError: `run_not_found` if it is missing, `run_damaged` if it is not such a
    report."""
    try:
        values = read_object(path)
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist; `inflight load report` writes it", "run_not_found") from None
    if "format" not in values:
        raise LoadError(f"{path} is not a report", "run_damaged")
    if (number := values.pop("format")) != FORMAT:
        raise LoadError(
            f"{path} has format {number}, this version reads {FORMAT}; `inflight load report` writes it again",
            "run_damaged",
        )
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise LoadError(f"{path} is not a report: {first_error(error)}", "run_damaged") from None
