"""The wording of a batch job's errors; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputSpec, OutputSpec
from inflight.batch.outputs.factory import create_output
from inflight.batch.row_formats.detection import first_record
from inflight.batch.sources.factory import open_source
from inflight.batch.storage.secret_address import expand_variables
from tests.batch.outputs.answers import job
from tests.batch.row_formats.parsing import rows_in, rows_of
from tests.fixtures.errors import Cause, check_messages


def test_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)

    def source(name: str, text: bytes | None) -> Cause:
        if text is not None:
            (tmp_path / name).write_bytes(text)
        return partial(open_source, InputSpec(address=str(tmp_path / name)))

    def record(name: str, text: bytes) -> Cause:
        source(name, text)
        return partial(first_record, open_source(InputSpec(address=str(tmp_path / name))))

    def output(**options: Any) -> Cause:
        spec = OutputSpec(**options)
        described = job("answers.jsonl").model_copy(update={"output": spec})
        return partial(create_output, described, JobDirectory(tmp_path / "one.job"))

    table = tmp_path / "rows.csv"
    table.write_text("id,name\n1,Tea\n")
    causes: list[Cause] = [
        source("empty.jsonl", b""),
        source("blank.jsonl", b"\n \r\n\n"),
        source("utf16.jsonl", '{"a": 1}\n'.encode("utf-16")),
        source("rows.xyz", b"{}"),
        source("list.json", b' [\n {"a": 1}]\n'),
        source("gone.jsonl", None),
        record("one.jsonl", b"hello"),
        record("two.jsonl", b"hello\n\n[1]\n"),
        record("returns.jsonl", b'{"a": 1}\r{"a": 2}\r'),
        source("blank.csv", b"\n\n"),
        source("twice.csv", b"id,id\n1,2\n"),
        source("quote.csv", b'"id,text\n1,2\n'),
        partial(open_source, InputSpec(address=f"sqlite:///{tmp_path}/gone.db", table="t")),
        partial(open_source, InputSpec(address="mysql+nowhere://host/shop", table="t")),
        partial(open_source, InputSpec(address="nowhere://bucket/rows.jsonl")),
        partial(rows_of, tmp_path, {"prompt": "Tea?"}, template="{{ name | nofilter }}"),
        partial(rows_of, tmp_path, {"prompt": "Tea?"}, keep=("text",)),
        partial(rows_of, tmp_path, {"prompt": "Tea?"}, row_format="openai", chat=True),
        partial(rows_in, table),
        partial(rows_in, table, template="{{ nam }}"),
        partial(rows_in, table, row_format="openai"),
        output(address=f"{tmp_path}/answers.csv", table="t"),
        output(address="postgresql://me:secret@db/shop"),
        partial(expand_variables, "postgresql://me:${SHOP_PASSWORD}@db/shop", "input_not_found"),
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)
