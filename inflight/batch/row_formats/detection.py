"""Detects the row format of an input from its first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InputRecord
from inflight.batch.sources.interface import RowSource

_REQUEST = {"custom_id", "method", "url", "body"}
_SAMPLE_ROWS = 100
"""Number of rows to decide the format."""
_MAX_SAMPLE_ROWS = 1000


def is_request(values: Mapping[str, Any]) -> bool:
    """Return whether a row is meant as a request in OpenAI's format, valid or not."""
    if values.keys() >= _REQUEST:
        return True
    named = ("custom_id" in values or "url" in values) and not ("prompt" in values or "messages" in values)
    return named and isinstance(values.get("body"), Mapping)


def first_record(source: RowSource) -> InputRecord | None:
    """Return a row of the kind that most of the first hundred readable rows are, requests in OpenAI's format or values,
    so that a bad line does not decide. None if no row can be read.

    Raises BatchError `input_invalid` if none of the first thousand rows, or none at all, is readable: that is another
    format, not a bad line.
    """
    first: dict[bool, InputRecord] = {}
    counts: Counter[bool] = Counter()
    number, last = 0, None
    for number, record in enumerate(source.read(), 1):
        last = record
        if record.values is not None:
            requests = is_request(record.values)
            first.setdefault(requests, record)
            counts[requests] += 1
        if counts.total() == _SAMPLE_ROWS or number >= _MAX_SAMPLE_ROWS:
            break
    if last is not None and not first:
        rows = f"none of the first {number} rows of the input can" if number > 1 else "the only row of the input can't"
        raise BatchError(
            f"{rows} be read; line {last.line}: {last.error}; check that its format is {source.format}",
            "input_invalid",
        )
    return first.get(counts[True] > 0 and counts[True] >= counts[False])
