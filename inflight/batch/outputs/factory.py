"""Creates the output of a job from its address and options."""

from __future__ import annotations

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.file_formats import resolve_format
from inflight.batch.job.spec import FileFormat, Job
from inflight.batch.outputs.file import CsvOutputFormat, FileOutput, JsonLinesOutputFormat, OutputFormat
from inflight.batch.outputs.interface import OutputWriter
from inflight.batch.outputs.sql import TableOutput
from inflight.batch.outputs.vectors import VectorTableOutput
from inflight.batch.storage.files import StoredFile


def create_output(job: Job, directory: JobDirectory) -> OutputWriter | None:
    """Return the output. None: the job's own answers file is the output.

    Raises BatchError (`output_invalid`, `package_missing`) if the address or the options are invalid.
    """
    output = job.output
    format = resolve_format(output.address, output.format, "output_invalid")
    if format == "sql":
        if output.table is None:
            raise BatchError(f"{output.shown} is a database; name the table to write", "output_invalid")
        return VectorTableOutput(job) if job.task == "embed" else TableOutput(job)
    named = [name for name in ("table", "key", "column", "columns") if getattr(output, name)]
    if named:
        raise BatchError(f"{output.shown} is a file and has no {named[0]}; leave that out", "output_invalid")
    if directory.writes_output:
        return None
    return FileOutput(output.address, _output_format(format, job), directory, job.input.address, job.task)


def _output_format(format: FileFormat, job: Job) -> OutputFormat:
    output, keep = job.output, job.kept
    if format == "csv":
        return CsvOutputFormat(keep, "\t" if StoredFile(output.address).suffix == ".tsv" else ",", job.task)
    if format == "parquet":
        from inflight.batch.outputs.parquet import ParquetOutputFormat

        return ParquetOutputFormat(keep, output.shown, job.task)
    return JsonLinesOutputFormat(job.task)
