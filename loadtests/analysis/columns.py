"""The records of a run as columns, so that a million requests fit in memory and are processed together."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtests.errors import LoadError
from loadtests.json_files import read_objects
from loadtests.record import RequestOutcome, RequestRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

OUTCOMES = tuple(RequestOutcome)
UNKNOWN = -1
"""The value for a missing count."""

_FIELDS = frozenset(field.name for field in fields(RequestRecord))
_MOMENTS = ("due", "sent", "ended")
_FLOATS = (*_MOMENTS, "audio_seconds")
_NUMBERS = ("worker", "session", "turn", "max_tokens")
_COUNTS = ("input_tokens", "output_tokens")
_TEXTS = {"finish": "finish_reason", "code": "code", "message": "message"}
"""The fields of a record by the columns that index its texts."""
_MAX_SECONDS = 1e8
"""Seconds. No run takes three years, but a damaged file may say so."""


def mean_value(values: Floats | Ints) -> float | None:
    return float(values.mean()) if len(values) else None


@dataclass(frozen=True)
class Columns:
    """Columns with one entry per request, sorted by due time, session and turn.

    Times are seconds since the run's start. `outcome` indexes `OUTCOMES`; `finish`, `code` and `message` index `texts`.
    `chunks` has the times of all responses, request by request: those of request i are `chunks[offsets[i]:offsets[i +
    1]]`.
    """

    worker: Ints
    session: Ints
    turn: Ints
    due: Floats
    sent: Floats
    ended: Floats
    outcome: Ints
    max_tokens: Ints
    input_tokens: Ints
    output_tokens: Ints
    texts_asked: Ints
    """The texts of each request to an encoder; 0 for others."""
    audio_seconds: Floats
    """The length of the audio of each answer."""
    finish: Ints
    code: Ints
    message: Ints
    offsets: Ints
    chunks: Floats
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.due)

    def with_outcome(self, *outcomes: RequestOutcome) -> Flags:
        """Return which requests ended with one of these outcomes."""
        return np.isin(self.outcome, [OUTCOMES.index(outcome) for outcome in outcomes])

    def text_is(self, column: Ints, *texts: str) -> Flags:
        """Return where a text column has one of these values."""
        return np.isin(column, [index for index, text in enumerate(self.texts) if text in texts])

    @cached_property
    def responses(self) -> Ints:
        """The number of responses with tokens of each request."""
        return np.diff(self.offsets)

    @cached_property
    def received_tokens(self) -> Ints:
        """The tokens of each request that its client knows of: from the record, or else one per response."""
        return np.where(self.output_tokens == UNKNOWN, self.responses, self.output_tokens)

    @cached_property
    def first(self) -> Floats:
        """The time of each request's first response; NaN without any."""
        return self._chunk_at(self.offsets[:-1])

    @cached_property
    def last(self) -> Floats:
        """The time of each request's last response; NaN without any."""
        return self._chunk_at(self.offsets[1:] - 1)

    @cached_property
    def gap_owner(self) -> Ints:
        """The request that each of `gaps` belongs to."""
        return np.repeat(np.arange(len(self)), np.maximum(self.responses - 1, 0))

    @cached_property
    def gap_end(self) -> Ints:
        """The index in `chunks` where each gap ends: all but the first of each request."""
        inner = np.ones(len(self.chunks), dtype=bool)
        inner[self.offsets[:-1][self.responses > 0]] = False
        return np.flatnonzero(inner)

    @cached_property
    def gaps(self) -> Floats:
        """Seconds between consecutive responses, of all requests in order."""
        ends = self.gap_end
        gaps: Floats = self.chunks[ends] - self.chunks[ends - 1]
        return gaps

    def due_between(self, start: float, end: float) -> slice:
        """Return the slice of the requests that are due from `start` on and before `end`."""
        low, high = np.searchsorted(self.due, (start, end)).tolist()
        return slice(low, high)

    def select(self, rows: slice) -> Columns:
        """Return these requests; their columns are views of this object's."""
        low, high = rows.start, rows.stop
        first, last = int(self.offsets[low]), int(self.offsets[high])
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = {name: column[low:high] for name, column in own.items() if name not in ("offsets", "chunks", "texts")}
        offsets = self.offsets[low : high + 1] - first
        return Columns(**parts, offsets=offsets, chunks=self.chunks[first:last], texts=self.texts)

    def _chunk_at(self, places: Ints) -> Floats:
        times = np.full(len(self), np.nan)
        some = self.responses > 0
        times[some] = self.chunks[places[some]]
        return times


class _ColumnReader:
    """Collects records from the file in compact arrays."""

    def __init__(self) -> None:
        own = {field.name for field in fields(Columns)} - {"offsets", "chunks", "texts"}
        self._columns = {name: array("d" if name in _FLOATS else "q") for name in own}
        self._chunks = array("d")
        self._responses = array("q")
        self._texts: dict[str, int] = {"": 0}

    def add(self, values: dict[str, Any]) -> None:
        """Raises TypeError, KeyError, ValueError or OverflowError for anything that is not a record."""
        if unknown := values.keys() - _FIELDS:
            raise ValueError(f"{min(unknown)} is unknown")
        row = {name: values[name] for name in (*_MOMENTS, *_NUMBERS)}
        row |= {name: UNKNOWN if values.get(name) is None else values[name] for name in _COUNTS}
        row |= {name: self._texts.setdefault(values.get(key, ""), len(self._texts)) for name, key in _TEXTS.items()}
        row |= {"outcome": OUTCOMES.index(RequestOutcome(values["outcome"])), "texts_asked": values.get("texts", 0)}
        row["audio_seconds"] = values.get("audio_seconds", 0.0)
        for name, value in row.items():
            self._columns[name].append(value)
        chunks = values.get("chunks", ())
        self._chunks.extend(array("d", chunks))
        self._responses.append(len(chunks))

    def columns(self) -> Columns:
        columns = {name: np.frombuffer(column, dtype=column.typecode) for name, column in self._columns.items()}
        order = np.lexsort((columns["turn"], columns["session"], columns["due"]))
        responses = np.frombuffer(self._responses, dtype=np.int64)
        chunks = np.frombuffer(self._chunks, dtype=float)
        begins = np.cumsum(responses) - responses
        offsets = np.concatenate(([0], np.cumsum(responses[order])))
        if np.any(order[1:] < order[:-1]):
            moved = np.repeat(begins[order] - offsets[:-1], responses[order])
            chunks = chunks[moved + np.arange(len(chunks))]
        ordered = {name: column[order] for name, column in columns.items()}
        return Columns(**ordered, offsets=offsets, chunks=chunks, texts=tuple(self._texts))


def read_columns(file: Path) -> Columns:
    """Read all complete lines of a run's requests.jsonl; return no requests if the file is missing.

    A truncated last line is skipped. Raises LoadError `run_damaged` for any other line that is not a record, and for
    impossible times.
    """
    reader = _ColumnReader()
    for number, values in read_objects(file):
        try:
            reader.add(values)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise LoadError(f"{file}, line {number}, is not a record: {what}", "run_damaged") from None
    columns = reader.columns()
    for moments in (columns.due, columns.sent, columns.ended, columns.chunks):
        # If a clock is set some seconds ahead, times before the start are negative. (NaN fails the comparison.)
        if not np.all(np.abs(moments) < _MAX_SECONDS):
            raise LoadError(f"{file} has a time that is not a number of seconds since the run's start", "run_damaged")
    if np.any(columns.gaps < 0):
        raise LoadError(f"{file} has a request whose responses are not in order of time", "run_damaged")
    return columns
