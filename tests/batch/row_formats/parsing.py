"""Forms for tests: made as a job makes them, of lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inflight_client.results import Generation, Timings, Usage

from inflight.batch.job.rows import GenerateRequest, InvalidRow, Row
from inflight.batch.job.spec import GenerationDefaults, InputSpec, Job, OutputSpec
from inflight.batch.row_formats.detection import first_record
from inflight.batch.row_formats.factory import create_row_format
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.sources.factory import open_source

CREATED = 1_700_000_000


def rows_of(folder: Path, *values: Any, **options: Any) -> tuple[RowFormat, list[Row | InvalidRow]]:
    """The form of these lines (bytes as they are, all else as JSON), and what it makes of them."""
    path = folder / "rows.jsonl"
    path.write_bytes(
        b"".join((value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n" for value in values)
    )
    return rows_in(path, **options)


def rows_in(
    path: Path, *, defaults: dict[str, Any] | None = None, output: str = "answers.jsonl", **options: Any
) -> tuple[RowFormat, list[Row | InvalidRow]]:
    spec = InputSpec(address=str(path), **options)
    job = Job(input=spec, output=OutputSpec(address=output), defaults=GenerationDefaults(**(defaults or {})))
    source = open_source(spec)
    form = create_row_format(job, source, first_record(source), CREATED)
    return form, [form.parse(number, record) for number, record in enumerate(source.read())]


def asked(row: Row | InvalidRow) -> Row:
    assert isinstance(row, Row), row
    return row


def prompted(row: Row | InvalidRow) -> GenerateRequest:
    """The request of a row that is generated."""
    request = asked(row).request
    assert isinstance(request, GenerateRequest)
    return request


def refused(row: Row | InvalidRow) -> InvalidRow:
    assert isinstance(row, InvalidRow), row
    return row


def answer(text: str = "Green tea.", **values: Any) -> Generation:
    fields = {"finish_reason": "stop", "usage": Usage(7, 3), "timings": Timings(0.1, 0.2), "request_id": "r", **values}
    return Generation(text, **fields)
