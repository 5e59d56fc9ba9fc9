"""Writes and reads the figures as files: `report.json` and `sweep.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from inflight.common.schema.validation_errors import first_error
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep.result import Sweep
from loadtests.errors import LoadError
from loadtests.json_files import read_object
from loadtests.run_directory import RunDirectory

Figures = TypeVar("Figures", Summary, Sweep)

_SUMMARY = TypeAdapter(Summary)
_SWEEP = TypeAdapter(Sweep)

FORMAT = 1
"""Version of the format; increased when older readers would misread the figures."""


def write_summary(summary: Summary, directory: RunDirectory) -> Path:
    """Write `report.json`. Raises LoadError `load_failed` if it cannot be written."""
    return _write(summary, directory.path / "report.json")


def write_sweep(sweep: Sweep, directory: Path) -> Path:
    """Write `sweep.json` in the directory that contains its runs. Raises LoadError `load_failed`."""
    return _write(sweep, directory / "sweep.json")


def read_summary(path: Path) -> Summary:
    """Read a `report.json`. Raises LoadError: `run_not_found` if it is missing, `run_damaged` if it is not such a
    report."""
    return _read(path, _SUMMARY)


def read_sweep(path: Path) -> Sweep:
    """Read a `sweep.json`. Raises LoadError as `read_summary` does."""
    return _read(path, _SWEEP)


def _write(figures: Summary | Sweep, path: Path) -> Path:
    text = json.dumps({"format": FORMAT, **figures.as_json()}, indent=2, allow_nan=False)
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise LoadError(f"{path} can't be written: {error.strerror}", "load_failed") from None
    return path


def _read(path: Path, adapter: TypeAdapter[Figures]) -> Figures:
    try:
        found = read_object(path)
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist; `inflight load report` writes it", "run_not_found") from None
    if "format" not in found:
        raise LoadError(f"{path} is not a report", "run_damaged")
    if (number := found.pop("format")) != FORMAT:
        raise LoadError(
            f"{path} has format {number}, this version reads {FORMAT}; `inflight load report` writes it again",
            "run_damaged",
        )
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        raise LoadError(f"{path} is not a report: {first_error(error)}", "run_damaged") from None
