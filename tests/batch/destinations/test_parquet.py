"""Answers as Parquet: one schema, whatever the rows keep."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from inflight.batch.destinations import parquet
from inflight.batch.destinations.file import FileDestination
from inflight.batch.destinations.parquet import Parquet
from tests.batch.destinations.answers import files, openai, plain

ANSWERS = [
    plain(1, price=2, tags=["x"], note=None),
    plain(2, price=2.5, tags=None, note="n"),
    plain(3, price=None, tags=[], note="m"),
]


def _destination(address: Path, keep: tuple[str, ...] = ()) -> FileDestination:
    return FileDestination(str(address), Parquet(keep, str(address)), begun=True)


def test_parquet_has_one_schema_for_all_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 2)
    address = tmp_path / "answers.parquet"
    _destination(address, ("price", "tags", "note")).finish(files(tmp_path, ANSWERS))
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
    _destination(address).finish(files(tmp_path, [plain(1), openai("b", "B")]))
    assert pq.read_table(address).to_pydict()["id"] == ["1", "b"]
