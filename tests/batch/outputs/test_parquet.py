"""Answers as Parquet: one schema, whatever the rows keep."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.outputs import parquet
from inflight.batch.outputs.file import FileOutput
from inflight.batch.outputs.parquet import ParquetOutputFormat
from tests.batch.outputs.answers import files, openai, plain
from tests.fixtures.errors import raises

ANSWERS = [
    plain(1, price=2, tags=["x"], note=None),
    plain(2, price=2.5, tags=None, note="n"),
    plain(3, price=None, tags=[], note="m"),
]


def _destination(address: Path, keep: tuple[str, ...] = ()) -> FileOutput:
    directory = JobDirectory(address.with_suffix(".job"))
    directory.path.mkdir(exist_ok=True)
    return FileOutput(str(address), ParquetOutputFormat(keep, str(address), "generate"), directory, source="")


def test_parquet_has_one_schema_for_all_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 2)
    address = tmp_path / "answers.parquet"
    _destination(address, ("price", "tags", "note")).finalize(files(tmp_path, ANSWERS))
    file = pq.ParquetFile(address)
    assert file.metadata.num_row_groups == 2
    assert {field.name: str(field.type) for field in file.schema_arrow} == {
        "id": "int64",
        "text": "string",
        "finish_reason": "string",
        "input_tokens": "int64",
        "output_tokens": "int64",
        "price": "double",
        "tags": "string",
        "note": "string",
    }
    table = file.read().to_pydict()
    assert table["price"] == [2.0, 2.5, None]
    assert table["tags"] == ['["x"]', None, "[]"]


def test_ids_that_are_not_all_numbers_are_texts(tmp_path: Path) -> None:
    address = tmp_path / "answers.parquet"
    _destination(address).finalize(files(tmp_path, [plain(1), openai("b", "B")]))
    assert pq.read_table(address).to_pydict()["id"] == ["1", "b"]


@pytest.mark.parametrize(
    ("values", "type_", "written"),
    [
        ([2**53, 0.5], "double", [2.0**53, 0.5]),
        ([2**53 + 1, 0.5, 3], "string", ["9007199254740993", "0.5", "3"]),
        ([2**53 + 1, 3], "int64", [2**53 + 1, 3]),
        ([2**63, 3], "string", ["9223372036854775808", "3"]),
        ([True, 3], "string", ["true", "3"]),
    ],
)
def test_a_kept_column_has_the_narrowest_type_that_loses_nothing(
    tmp_path: Path, values: list[object], type_: str, written: list[object]
) -> None:
    address = tmp_path / "answers.parquet"
    lines = [plain(number, price=value) for number, value in enumerate(values)]
    _destination(address, ("price",)).finalize(files(tmp_path, lines))
    column = pq.read_table(address)["price"]
    assert (str(column.type), column.to_pylist()) == (type_, written)


def test_what_arrow_refuses_is_a_sentence_that_says_where_the_answers_are(tmp_path: Path) -> None:
    lines = files(tmp_path, [plain(1), plain(2).replace(b'"input_tokens":7', b'"input_tokens":"seven"')])
    with raises(BatchError, "output_invalid", naming="ok.jsonl"):
        _destination(tmp_path / "answers.parquet").finalize(lines)
    assert not (tmp_path / "answers.parquet").exists()


def test_long_kept_texts_make_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_CHARACTERS", 10_000)
    address = tmp_path / "answers.parquet"
    lines = [plain(number, page="x" * 4000, parts=["y" * 4000]) for number in range(6)]
    _destination(address, ("page", "parts")).finalize(files(tmp_path, lines))
    assert pq.ParquetFile(address).metadata.num_row_groups == 3
