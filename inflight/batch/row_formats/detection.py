"""Which row format an input has, by its first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InputRecord
from inflight.batch.sources.interface import RowSource

_REQUEST = {"custom_id", "method", "url", "body"}
_SAMPLE_ROWS = 100
"""Rows that tell the form of all."""
_MAX_SAMPLE_ROWS = 1000


def is_request(values: Mapping[str, Any]) -> bool:
    """Whether a row means to be a request of OpenAI's format, be there something wrong with it or not."""
    if values.keys() >= _REQUEST:
        return True
    named = ("custom_id" in values or "url" in values) and not ("prompt" in values or "messages" in values)
    return named and isinstance(values.get("body"), Mapping)


def first_record(source: RowSource) -> InputRecord | None:
    """A row that is what most of the first hundred are that can be read, requests of OpenAI's format or values: so the
    form of all does not go by a bad line. None where no row can be read.

    Raises BatchError `input_invalid` where none of the first thousand can, or none of all: that is another format, and
    no bad line.
    """
    first: dict[bool, InputRecord] = {}
    found: Counter[bool] = Counter()
    number, last = 0, None
    for number, record in enumerate(source.read(), 1):
        last = record
        if record.values is not None:
            requests = is_request(record.values)
            first.setdefault(requests, record)
            found[requests] += 1
        if found.total() == _SAMPLE_ROWS or number >= _MAX_SAMPLE_ROWS:
            break
    if last is not None and not first:
        rows = f"none of the first {number} rows of the input can" if number > 1 else "the only row of the input can't"
        raise BatchError(
            f"{rows} be read; of line {last.line}: {last.error}; is it in the format {source.format}?",
            "input_invalid",
        )
    return first.get(found[True] > 0 and found[True] >= found[False])
