"""Forms for tests: made as a job makes them, of lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inflight_client.results import Generation, Timings, Usage

from inflight.batch.forms.form import Form
from inflight.batch.forms.make import make_form
from inflight.batch.job import Defaults, InputSpec, Job, OutputSpec
from inflight.batch.row import Fault, Row
from inflight.batch.sources.open import first_record, open_source

CREATED = 1_700_000_000


def rows_of(
    folder: Path, *values: Any, defaults: dict[str, Any] | None = None, **options: Any
) -> tuple[Form, list[Row | Fault]]:
    """The form of these lines (bytes as they are, all else as JSON), and what it makes of them."""
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in values))
    return rows_in(path, defaults=defaults, **options)


def rows_in(path: Path, *, defaults: dict[str, Any] | None = None, **options: Any) -> tuple[Form, list[Row | Fault]]:
    spec = InputSpec(address=str(path), **options)
    job = Job(input=spec, output=OutputSpec(address="answers.jsonl"), defaults=Defaults(**(defaults or {})))
    source = open_source(spec)
    form = make_form(job, source, first_record(source), CREATED)
    return form, [form.row(number, record) for number, record in enumerate(source.read())]


def asked(row: Row | Fault) -> Row:
    assert isinstance(row, Row), row
    return row


def refused(row: Row | Fault) -> Fault:
    assert isinstance(row, Fault), row
    return row


def answer(text: str = "Green tea.", **values: Any) -> Generation:
    given = {"finish_reason": "stop", "usage": Usage(7, 3), "timings": Timings(0.1, 0.2), "request_id": "r", **values}
    return Generation(text, **given)
