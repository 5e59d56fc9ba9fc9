"""The destination of a job's answers, by what its address and options say."""

from __future__ import annotations

from inflight.batch.destinations.destination import Destination
from inflight.batch.destinations.file import FileDestination, Shape
from inflight.batch.destinations.sql import SqlDestination
from inflight.batch.errors import BatchError
from inflight.batch.files import StoredFile
from inflight.batch.formats import format_of
from inflight.batch.job import Format, Job, OutputSpec
from inflight.batch.job_directory import JobDirectory


def make_destination(job: Job, directory: JobDirectory) -> Destination | None:
    """Where the answers go. None: the job's own file of answers is the output.

    Raises BatchError (`output_invalid`, `package_missing`) where the address or the options don't fit.
    """
    output, keep = job.output, job.input.keep
    format = format_of(output.address, output.format, "output_invalid")
    if format == "sql":
        if output.table is None:
            raise BatchError(f"{output.shown} is a database; name the table to write", "output_invalid")
        return SqlDestination(job)
    named = [name for name in ("table", "key", "column", "columns") if getattr(output, name)]
    if named:
        raise BatchError(f"{output.shown} is a file, and has no {named[0]}; leave that out", "output_invalid")
    if directory.writes_output:
        return None
    return FileDestination(output.address, _shape(format, output, keep), directory, job.input.address)


def _shape(format: Format, output: OutputSpec, keep: tuple[str, ...]) -> Shape:
    if format == "csv":
        from inflight.batch.destinations.csv import Csv

        return Csv(keep, "\t" if StoredFile(output.address).suffix == ".tsv" else ",")
    if format == "parquet":
        from inflight.batch.destinations.parquet import Parquet

        return Parquet(keep, output.shown)
    from inflight.batch.destinations.lines import Lines

    return Lines()
