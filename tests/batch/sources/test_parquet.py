"""Parquet as rows: what is read, reading from any row on, and the error for an invalid file."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.row_formats.template import wanted_columns
from inflight.batch.sources.factory import open_source
from tests.fixtures.errors import raises


def _write(path: Path, rows: list[dict[str, Any]], **options: Any) -> InputSpec:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return InputSpec(address=str(path), template="{{ row }}")


def test_rows_of_several_groups_are_read_from_any_row_on(tmp_path: Path) -> None:
    rows = [{"id": number, "prompt": f"tea {number}"} for number in range(1000)]
    source = open_source(_write(tmp_path / "rows.parquet", rows, row_group_size=300))
    records = list(source.read())
    assert [record.values for record in records] == rows
    assert (source.total, source.columns) == (1000, ["id", "prompt"])
    for number in (0, 255, 298, 299, 300, 899, 998, 999):
        assert list(source.read(json.loads(json.dumps(records[number].position)))) == records[number + 1 :]
    assert source.fraction_read(records[499].position) == 0.5


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    row = {
        "messages": [{"role": "user", "content": "Tea?"}],
        "price": Decimal("1.50"),
        "day": date(2026, 5, 4),
        "none": None,
    }
    (record,) = open_source(_write(tmp_path / "rows.pq", [row])).read()
    assert record.values == row


def test_a_text_that_is_no_text_leaves_the_other_rows_alone(tmp_path: Path) -> None:
    bad = pyarrow.Array.from_buffers(
        pyarrow.string(),
        3,
        [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xffc")],
    )
    parquet.write_table(pyarrow.table({"prompt": bad}), tmp_path / "rows.parquet")
    records = list(open_source(InputSpec(address=str(tmp_path / "rows.parquet"))).read())
    assert [record.values for record in records] == [{"prompt": "a"}, None, {"prompt": "c"}]
    assert "'prompt' is not UTF-8" in records[1].error


def test_columns_that_no_row_needs_are_not_read(tmp_path: Path) -> None:
    spec = _write(tmp_path / "rows.parquet", [{"id": 1, "prompt": "tea", "picture": b"x" * 100}])
    spec = spec.model_copy(update={"template": None, "id": "id"})
    (record,) = open_source(
        spec, columns=wanted_columns(Job(input=spec, output=OutputSpec(address="answers.jsonl")))
    ).read()
    assert record.values == {"id": 1, "prompt": "tea"}


@pytest.mark.parametrize("damage", ["text", "cut", "middle"])
def test_a_file_that_is_none_is_told(tmp_path: Path, damage: str) -> None:
    spec = _write(tmp_path / "rows.parquet", [{"prompt": f"tea {number}"} for number in range(9999)])
    path = Path(spec.address)
    whole = path.read_bytes()
    damaged = {"text": b"no parquet", "cut": whole[:-20], "middle": whole[:100] + bytes(3000) + whole[3100:]}
    path.write_bytes(damaged[damage])
    with raises(BatchError, "input_invalid", naming="rows.parquet"):
        list(open_source(spec).read())
