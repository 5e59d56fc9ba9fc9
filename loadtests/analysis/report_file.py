"""`report.json`: a summary as a file, which scripts read, and which is read back as it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from loadtests.analysis.summary import Summary
from loadtests.errors import LoadError
from loadtests.run_directory import RunDirectory

FORMAT = 1
"""Goes up whenever a reader of the figures would be wrong about them."""


def write(summary: Summary, directory: RunDirectory) -> Path:
    """Raises LoadError `load_failed` where nothing can be written."""
    path = directory.path / "report.json"
    text = json.dumps({"format": FORMAT, **asdict(summary)}, indent=2, allow_nan=False)
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise LoadError(f"{path} can't be written: {error.strerror}", "load_failed") from None
    return path


def read(path: Path) -> Summary:
    """Raises LoadError: `run_not_found` where there is none, `run_damaged` for what is no report of this format."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist; `inflight load report` makes it", "run_not_found") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} can't be read: {error}", "run_damaged") from None
    if not isinstance(found, dict) or "format" not in found:
        raise LoadError(f"{path} is no report of a run", "run_damaged")
    if (number := found.pop("format")) != FORMAT:
        raise LoadError(
            f"{path} has format {number}, this version reads {FORMAT}; `inflight load report` makes it anew",
            "run_damaged",
        )
    try:
        summary: Summary = _adapter().validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LoadError(f"{path} is no report of a run: {where}: {first['msg']}", "run_damaged") from None
    return summary


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Summary)
