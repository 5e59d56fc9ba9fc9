"""`report.json` and `sweep.json`: figures as files, which scripts read, and which are read back as they were."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep.result import Sweep
from loadtests.errors import LoadError
from loadtests.json_files import read_object
from loadtests.run_directory import RunDirectory

Figures = TypeVar("Figures", Summary, Sweep)

_SUMMARY = TypeAdapter(Summary)
_SWEEP = TypeAdapter(Sweep)

FORMAT = 1
"""Goes up whenever a reader of the figures would be wrong about them."""


def write_summary(summary: Summary, directory: RunDirectory) -> Path:
    """As `report.json`. Raises LoadError `load_failed` where nothing can be written."""
    return _write(summary, directory.path / "report.json")


def write_sweep(sweep: Sweep, directory: Path) -> Path:
    """As `sweep.json`, in the directory that holds its runs. Raises LoadError `load_failed` as `write` does."""
    return _write(sweep, directory / "sweep.json")


def read_summary(path: Path) -> Summary:
    """Raises LoadError: `run_not_found` where there is none, `run_damaged` for what is no report of this format."""
    return _read(path, _SUMMARY)


def read_sweep(path: Path) -> Sweep:
    """Raises LoadError as `read` does."""
    return _read(path, _SWEEP)


def _write(figures: Summary | Sweep, path: Path) -> Path:
    text = json.dumps({"format": FORMAT, **asdict(figures)}, indent=2, allow_nan=False)
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise LoadError(f"{path} can't be written: {error.strerror}", "load_failed") from None
    return path


def _read(path: Path, adapter: TypeAdapter[Figures]) -> Figures:
    try:
        found = read_object(path)
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist; `inflight load report` makes it", "run_not_found") from None
    if "format" not in found:
        raise LoadError(f"{path} is no report", "run_damaged")
    if (number := found.pop("format")) != FORMAT:
        raise LoadError(
            f"{path} has format {number}, this version reads {FORMAT}; `inflight load report` makes it anew",
            "run_damaged",
        )
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LoadError(f"{path} is no report: {where}: {first['msg']}", "run_damaged") from None
