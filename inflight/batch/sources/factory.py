"""Creates the source of a job's rows from its address and options."""

from __future__ import annotations

from inflight.batch.errors import BatchError
from inflight.batch.job.file_formats import resolve_format
from inflight.batch.job.spec import InputSpec
from inflight.batch.sources.interface import RowSource
from inflight.batch.storage.addresses import is_queue
from inflight.batch.storage.files import StoredFile


def open_source(spec: InputSpec, bound_fingerprint: str = "", columns: frozenset[str] | None = None) -> RowSource:
    """Open the rows of an input. Raises BatchError if it is missing or invalid.

    `bound_fingerprint` is the one that the job started with, if any: a table that has grown since then is read only up
    to its size then. `columns` are read from a table or a Parquet file; None reads all.
    """
    if is_queue(spec.address):
        raise BatchError(
            f"{spec.shown} is a message queue, whose messages can't be read again; name a file or a table",
            "input_invalid",
        )
    format = resolve_format(spec.address, spec.format, "input_invalid")
    for name, value in (("table", spec.table), ("query", spec.query)):
        if value is not None and format != "sql":
            raise BatchError(f"{spec.shown} is a file and has no {name}; leave that option out", "input_invalid")
    file = StoredFile(spec.address)
    if format == "jsonl":
        from inflight.batch.sources.jsonl import JsonLinesSource

        return JsonLinesSource(file)
    if format == "csv":
        from inflight.batch.sources.csv import CsvSource

        return CsvSource(file, spec.delimiter)
    if format == "parquet":
        from inflight.batch.sources.parquet import ParquetSource

        return ParquetSource(file, columns)
    from inflight.batch.sources.sql import SqlSource

    return SqlSource(spec, columns, bound_fingerprint)
