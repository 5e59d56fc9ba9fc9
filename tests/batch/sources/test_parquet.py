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
from inflight.batch.job.rows import InvalidRow, Row
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.row_formats.template import wanted_columns
from inflight.batch.sources.factory import open_source
from tests.batch.row_formats.parsing import answer, asked, prompted, refused, rows_in
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


_TEXTS = [
    ({"prompt": pyarrow.binary(), "id": pyarrow.binary()}, {"prompt": b"Tea?", "id": b"a"}, "Tea?", "a"),
    ({"id": pyarrow.binary(16)}, {"prompt": "Tea?", "id": b"\xff" * 16}, "Tea?", "ff" * 16),
    ({}, {"id": "a", "messages": [{"role": b"user", "content": b"Tea?"}]}, [{"role": "user", "content": "Tea?"}], "a"),
]


@pytest.mark.parametrize(("types", "row", "prompt", "name"), _TEXTS)
def test_binary_prompts_and_ids_are_texts(
    tmp_path: Path, types: dict[str, Any], row: dict[str, Any], prompt: Any, name: str
) -> None:
    (parsed,) = _parsed(tmp_path, pyarrow.schema([*types.items()]), row, id="id")[1]
    assert (prompted(asked(parsed)).prompt, parsed.id) == (prompt, name)


_KEPT = [
    (pyarrow.timestamp("ns"), 10**18, "2001-09-09T01:46:40"),
    (pyarrow.timestamp("ns", "UTC"), 1, "1970-01-01T00:00:00.000000001+00:00"),
    (pyarrow.timestamp("s"), 4 * 10**11, "14645-06-30 15:06:40.000"),
    (pyarrow.list_(pyarrow.timestamp("us")), [0], ["1970-01-01T00:00:00"]),
    (pyarrow.duration("us"), 1_500_000, "PT1.5S"),
    (pyarrow.time64("us"), 0, "00:00:00"),
    (pyarrow.date32(), 0, "1970-01-01"),
    (pyarrow.decimal128(4, 2), Decimal("1.50"), "1.50"),
    (pyarrow.float64(), float("inf"), "Infinity"),
    (pyarrow.float64(), float("nan"), "NaN"),
    (pyarrow.struct({"x": pyarrow.float32(), "y": pyarrow.binary()}), {"x": float("-inf"), "y": b"a"},
     {"x": "-Infinity", "y": "61"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "kept"), _KEPT)
def test_kept_values_that_json_lacks_are_texts(tmp_path: Path, kind: pyarrow.DataType, value: Any, kept: Any) -> None:
    form, (row,) = _parsed(tmp_path, pyarrow.schema({"x": kind}), {"prompt": "Tea?", "x": value}, keep=("x",))
    assert json.loads(form.format_answer(asked(row), answer(), 1).text)["x"] == kept


def test_a_template_has_no_place_for_binary_values_that_are_no_texts(tmp_path: Path) -> None:
    _, rows = _parsed(tmp_path, pyarrow.schema([]), {"x": b"Tea?"}, {"x": b"\xff"}, template="{{ x }}")
    assert prompted(asked(rows[0])).prompt == "Tea?"
    assert refused(rows[1]).code == "row_invalid"


def _parsed(
    folder: Path, types: pyarrow.Schema, *rows: dict[str, Any], **options: Any
) -> tuple[RowFormat, list[Row | InvalidRow]]:
    """Write rows, with these types or those of the values, and parse them."""
    arrays = {
        name: pyarrow.array([row[name] for row in rows], types.field(name).type if name in types.names else None)
        for name in rows[0]
    }
    parquet.write_table(pyarrow.table(arrays), folder / "rows.parquet")
    return rows_in(folder / "rows.parquet", **options)
