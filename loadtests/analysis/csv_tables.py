"""Writes the requests and the seconds of a run as spreadsheets: `requests.csv` and `timeline.csv`."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from loadtests.analysis.columns import OUTCOMES, UNKNOWN, Columns, read_columns
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.summary import Timeline
from loadtests.errors import LoadError
from loadtests.run_directory import RunDirectory

Cell = str | int | float | None

REQUESTS = (
    *("worker", "session", "turn", "due_s", "sent_s", "ended_s", "measured", "outcome", "finish_reason", "error_code"),
    *("max_tokens", "input_tokens", "output_tokens", "responses"),
    *("ttft_s", "ttft_sent_s", "mean_itl_s", "tpot_s", "e2e_s", "e2e_sent_s"),
)
"""The columns of `requests.csv`; `measured` is 1 for requests due in the measured part. Missing values are empty."""

_TIMELINE = {
    **{name: f"{name}_requests" for name in ("due", "sent", "completed", "cancelled", "failed", "open")},
    **{name: f"{name}_s" for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "lag")},
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
    return _write(directory.path / "requests.csv", REQUESTS, _rows(columns, measured))


def write_timeline(timeline: Timeline, directory: RunDirectory) -> Path:
    """Write one row per second. Raises LoadError if writing fails."""
    names = ("second", *(_TIMELINE.get(name, name) for name in timeline.columns))
    rows = ((int(t), *cells) for t, *cells in zip(timeline.t, *timeline.columns.values(), strict=True))
    return _write(directory.path / "timeline.csv", names, rows)


def _rows(columns: Columns, measured: slice) -> Iterator[tuple[Cell, ...]]:
    own = Latencies.from_columns(columns)
    times = (own.ttft, own.ttft_sent, own.itl, own.tpot, own.e2e, own.e2e_sent)
    for i in range(len(columns)):
        yield (
            *(int(columns.worker[i]), int(columns.session[i]), int(columns.turn[i])),
            *(_seconds(columns.due[i]), _seconds(columns.sent[i]), _seconds(columns.ended[i])),
            *(int(measured.start <= i < measured.stop), OUTCOMES[columns.outcome[i]].value),
            *(columns.texts[columns.finish[i]], columns.texts[columns.code[i]], int(columns.max_tokens[i])),
            *(_count(columns.input_tokens[i]), _count(columns.output_tokens[i]), int(columns.responses[i])),
            *(_seconds(time[i]) for time in times),
        )


def _seconds(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def _count(value: int) -> int | None:
    return None if value == UNKNOWN else int(value)


def _write(path: Path, names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Path:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(rows)
    except OSError as error:
        raise LoadError(f"{path} can't be written: {error.strerror}", "load_failed") from None
    return path
