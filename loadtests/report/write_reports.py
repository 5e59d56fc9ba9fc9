"""Writes the files for people and scripts from the records of a run, and reads figures back."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from inflight.common.schema.validation_errors import first_error
from loadtests.analysis.audit import answers_file, evaluate_audit
from loadtests.analysis.columns import OUTCOMES, UNKNOWN, Columns, read_columns
from loadtests.analysis.comparison.compare import compare
from loadtests.analysis.comparison.result import SERVERS, Comparison
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.run_data import RunData
from loadtests.analysis.summarize import summarize
from loadtests.analysis.summary import Summary, Timeline
from loadtests.analysis.sweep import Sweep
from loadtests.errors import LoadError
from loadtests.json_files import read_object
from loadtests.report.document import CHART_LIBRARY, write_library
from loadtests.report.page import comparison_page, run_page, sweep_page
from loadtests.run_directory import RunDirectory

Figures = TypeVar("Figures", Summary, Sweep)

FORMAT = 1
"""Version of the format; increased when older readers would misread the figures."""


def write_figures(figures: Summary | Sweep | Comparison, path: Path) -> Path:
    """Write the JSON file of a run, a sweep or a comparison. Raises LoadError `load_failed` if it can't be written."""
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


Cell = str | int | float | None

_COMMON = ("worker", "session", "turn", "due_s", "sent_s", "ended_s", "measured", "outcome")
_END_TO_END = ("e2e_s", "e2e_sent_s")
REQUESTS = (
    *(*_COMMON, "finish_reason", "error_code", "max_tokens", "input_tokens", "output_tokens", "responses"),
    *("ttft_s", "ttft_sent_s", "mean_itl_s", "tpot_s", *_END_TO_END),
)
"""The columns of `requests.csv`; `measured` is 1 for requests due in the measured part. Missing values are empty."""
ENCODER_REQUESTS = (*_COMMON, "error_code", "texts", "audio_s", "input_tokens", *_END_TO_END)
"""The same of requests to an encoder."""

_TIMELINE = {
    **{name: f"{name}_requests" for name in ("due", "sent", "completed", "cancelled", "failed", "open")},
    **{name: f"{name}_s" for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "lag")},
    **{name: f"{name}_s" for name in ("e2e_p50", "e2e_p99")},
    "running": "running_requests",
    "waiting": "waiting_requests",
    "kv_use": "kv_use_fraction",
    "cpu": "cpu_cores",
}


def write_requests(directory: RunDirectory) -> Path:
    """Write one row per request, in order of due time. Raises LoadError as `summarize` does, and if writing fails."""
    plan = directory.plan()
    columns = read_columns(directory.requests)
    measured = columns.due_between(plan.warmup, plan.end)
    names = ENCODER_REQUESTS if plan.encodes else REQUESTS
    rows = ({name: cells[name] for name in names}.values() for cells in _rows(columns, measured))
    return _write(directory.path / "requests.csv", names, rows)


def write_timeline(timeline: Timeline, directory: RunDirectory) -> Path:
    """Write one row per second. Raises LoadError if writing fails."""
    names = ("second", *(_TIMELINE.get(name, name) for name in timeline.columns))
    rows = ((int(t), *cells) for t, *cells in zip(timeline.t, *timeline.columns.values(), strict=True))
    return _write(directory.path / "timeline.csv", names, rows)


def _rows(columns: Columns, measured: slice) -> Iterator[dict[str, Cell]]:
    own = Latencies.from_columns(columns)
    times = {"ttft_s": own.ttft, "ttft_sent_s": own.ttft_sent, "mean_itl_s": own.itl, "tpot_s": own.tpot}
    times |= {"e2e_s": own.e2e, "e2e_sent_s": own.e2e_sent}
    times |= {"audio_s": columns.audio_seconds, "due_s": columns.due, "sent_s": columns.sent, "ended_s": columns.ended}
    numbers = {"worker": columns.worker, "session": columns.session, "turn": columns.turn, "texts": columns.texts_asked}
    numbers |= {"max_tokens": columns.max_tokens, "responses": columns.responses}
    for i in range(len(columns)):
        yield {
            **{name: int(values[i]) for name, values in numbers.items()},
            **{name: _seconds(values[i]) for name, values in times.items()},
            "measured": int(measured.start <= i < measured.stop),
            "outcome": OUTCOMES[columns.outcome[i]].value,
            "finish_reason": columns.texts[columns.finish[i]],
            "error_code": columns.texts[columns.code[i]],
            "input_tokens": _count(columns.input_tokens[i]),
            "output_tokens": _count(columns.output_tokens[i]),
        }


def _seconds(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def _count(value: int) -> int | None:
    return None if value == UNKNOWN else int(value)


def _write(path: Path, names: Sequence[str], rows: Iterable[Iterable[Cell]]) -> Path:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(rows)
    except OSError as error:
        raise LoadError(f"{path} can't be written: {error.strerror}", "load_failed") from None
    return path


PAGE = "report.html"


def write_run_report(directory: RunDirectory, sweep: Path | None = None) -> tuple[Summary, Path]:
    """Write `report.json`, the tables and the page, possibly again. Raises LoadError if the run is incomplete.

    The page is one self-contained file; for a run in the directory of a `sweep` it loads the chart library from there.
    """
    summary = summarize(directory)
    write_figures(summary, directory.path / "report.json")
    write_requests(directory)
    write_timeline(summary.timeline, directory)
    page = directory.path / PAGE
    name, library = directory.path.resolve().name, ""
    if sweep is not None:
        name, library = f"{sweep.resolve().name}/{name}", f"../{CHART_LIBRARY}"
        write_library(sweep)
    page.write_text(run_page(summary, name, library), encoding="utf-8")
    return summary, page


def write_servers_report(sides: tuple[Sequence[RunDirectory], Sequence[RunDirectory]], directory: Path) -> Comparison:
    """Compare the windows of two servers, and write `comparison.json` and the page in the directory above them."""
    comparison = compare(*sides, threshold=None, names=SERVERS)
    audits = {
        name: evaluate_audit(run, RunData.read(run))
        for name, windows in zip(SERVERS, sides, strict=True)
        for run in windows
        if answers_file(run).exists()
    }
    comparison = replace(comparison, audits=audits)
    write_figures(comparison, directory / "comparison.json")
    write_library(directory)
    page = comparison_page(comparison, directory.resolve().name, CHART_LIBRARY)
    (directory / PAGE).write_text(page, encoding="utf-8")
    return comparison


def write_sweep_report(sweep: Sweep, directory: Path) -> Path:
    """Write `sweep.json` and the page in the directory of the sweep's runs."""
    write_figures(sweep, directory / "sweep.json")
    page = directory / PAGE
    write_library(directory)
    page.write_text(sweep_page(sweep, directory.resolve().name, CHART_LIBRARY), encoding="utf-8")
    return page
