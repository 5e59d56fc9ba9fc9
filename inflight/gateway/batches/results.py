"""Turns what the job of a batch has written into the output file and the error file of the batch."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import OutputSpec
from inflight.batch.reporting.progress import read_progress
from inflight.batch.row_formats.openai import error_line
from inflight.common.atomic_files import atomic_writer
from inflight.gateway.batches.database import map_disk_errors
from inflight.gateway.batches.files import FileStore
from inflight.gateway.batches.job_process import OUTPUT
from inflight.gateway.batches.store import BatchRecord, input_path, job_directory, usage

_COPY_BYTES = 1 << 20
_ERRORS = "error.jsonl"


def publish_results(record: BatchRecord, files: FileStore) -> dict[str, Any]:
    """Make output and error file of a job that has ended; return the fields of the batch that describe them.

    The same batch has the same files, however often this is called. Raises InflightError.
    """
    with map_disk_errors(f"the output of {record.batch['id']}"):
        job = JobDirectory(job_directory(record.path).path, OutputSpec(address=str(record.path / OUTPUT)))
        output = job.result_file(RowStatus.OK)
        errors = _error_file(job, record.path / _ERRORS)
        completed, failed = _count_lines(output), _count_lines(errors)
    total = max(record.batch["request_counts"]["total"], completed + failed)
    fields: dict[str, Any] = {"request_counts": {"total": total, "completed": completed, "failed": failed}}
    for field, path, rows in (("output_file_id", output, completed), ("error_file_id", errors, failed)):
        if rows:
            name = f"{record.batch['id']}_{path.name}"
            fields[field] = files.adopt(record.tenant, path, name, name, record.output_seconds)["id"]
    progress = read_progress(job)
    if progress is not None:
        fields["usage"] = usage(progress.counts.input_tokens, progress.counts.output_tokens)
    return fields


def remove_job(path: Path) -> None:
    """Remove input and job of a batch that has ended, from its directory."""
    shutil.rmtree(job_directory(path).path, ignore_errors=True)
    names = (_ERRORS, "job.log", "share")
    for file in (input_path(path), *path.glob("output*.jsonl"), *(path / name for name in names)):
        with suppress(OSError):
            file.unlink()


def _error_file(job: JobDirectory, target: Path) -> Path:
    """Return the file with the lines of all rows without an answer; dead letters become lines of OpenAI's format."""
    errors, letters = job.result_file(RowStatus.ERROR), job.result_file(RowStatus.DEAD)
    if not letters.exists():
        return errors
    with atomic_writer(target, mode=0o600) as file:
        if errors.exists():
            with errors.open("rb") as source:
                shutil.copyfileobj(source, file, _COPY_BYTES)
        with letters.open("rb") as source:
            for line in source:
                letter = orjson.loads(line)
                file.write(error_line(str(letter["id"]), letter["message"], letter["code"]) + b"\n")
    return target


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_COPY_BYTES), b""))
    except FileNotFoundError:
        return 0
