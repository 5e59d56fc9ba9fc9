"""The source of a job's rows, by what its address and options say."""

from __future__ import annotations

from collections import Counter

from inflight.batch.errors import BatchError
from inflight.batch.files import StoredFile
from inflight.batch.formats import format_of
from inflight.batch.forms.make import is_request
from inflight.batch.forms.template import wanted_columns
from inflight.batch.job import InputSpec
from inflight.batch.row import Record
from inflight.batch.sources.source import Source

_TELLING = 100
"""Rows that tell the form of all."""
_LOOKED_AT = 1000


def open_source(spec: InputSpec, begun: str = "") -> Source:
    """The rows of an input. Raises BatchError where it is not there, or not what it is said to be.

    `begun`: the fingerprint that a job began with, if one has: a table that has grown is read as far as it went then.
    """
    format = format_of(spec.address, spec.format, "input_invalid")
    for name, value in (("table", spec.table), ("query", spec.query)):
        if value is not None and format != "sql":
            raise BatchError(f"{spec.shown} is a file, and has no {name}; leave that out", "input_invalid")
    file = StoredFile(spec.address)
    if format == "jsonl":
        from inflight.batch.sources.jsonl import JsonLines

        return JsonLines(file)
    if format == "csv":
        from inflight.batch.sources.csv import Csv

        return Csv(file)
    if format == "parquet":
        from inflight.batch.sources.parquet import Parquet

        return Parquet(file, wanted_columns(spec))
    from inflight.batch.sources.sql import SqlRows

    return SqlRows(spec, wanted_columns(spec), begun)


def first_record(source: Source) -> Record | None:
    """A row that is what most of the first hundred are that can be read, requests of OpenAI's format or values: so the
    form of all does not go by a bad line. None where no row can be read.

    Raises BatchError `input_invalid` where none of the first thousand can, or none of all: that is another format, and
    no bad line.
    """
    first: dict[bool, Record] = {}
    found: Counter[bool] = Counter()
    number, last = 0, None
    for number, record in enumerate(source.read(), 1):
        last = record
        if record.values is not None:
            requests = is_request(record.values)
            first.setdefault(requests, record)
            found[requests] += 1
        if found.total() == _TELLING or number >= _LOOKED_AT:
            break
    if last is not None and not first:
        rows = f"none of the first {number} rows of the input can" if number > 1 else "the only row of the input can't"
        raise BatchError(
            f"{rows} be read; of line {last.line}: {last.fault}; is it in the format {source.format}?",
            "input_invalid",
        )
    return first.get(found[True] > 0 and found[True] >= found[False])
