"""CSV as rows: what is read, the error for an invalid row, and reading from any position on."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import InputSpec
from inflight.batch.sources import csv as csv_source
from inflight.batch.sources.factory import open_source
from inflight.batch.sources.interface import RowSource
from tests.fixtures.errors import raises

_VALUES = st.text(st.sampled_from('ab",;\n\t é漢'), max_size=6)
_LINES = st.lists(st.text(st.sampled_from('ab",\n'), max_size=8), min_size=1, max_size=12)


def _source(path: Path, text: bytes) -> RowSource:
    path.write_bytes(text)
    return open_source(InputSpec(address=str(path)))


def _check_reading_on(source: RowSource) -> list[Any]:
    records = list(source.read())
    for number, record in enumerate(records):
        position = json.loads(json.dumps(record.position))
        assert list(source.read(position, record.line)) == records[number + 1 :]
    return records


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(_VALUES, _VALUES), max_size=8), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_what_was_written_is_read_from_any_row_on(tmp_path_factory: Any, rows: Any, end: str, bom: bool) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows([("name", "text"), *rows])
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    records = _check_reading_on(_source(path, text.getvalue().encode("utf-8-sig" if bom else "utf-8")))
    assert [record.values for record in records] == [{"name": name, "text": value} for name, value in rows]


@settings(max_examples=60, deadline=None)
@given(lines=_LINES)
def test_however_broken_a_file_is_it_is_read_the_same_from_any_row_on(tmp_path_factory: Any, lines: Any) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    _check_reading_on(_source(path, ("name,text\n" + "\n".join(lines)).encode()))


def test_a_quote_that_is_never_closed_costs_its_own_row_alone(tmp_path: Path) -> None:
    text = b'id,text\n1,good\n2,"bad\n3,good\n4,"two\nlines"\n'
    records = list(_source(tmp_path / "rows.csv", text).read())
    assert [(record.line, record.values and record.values["id"]) for record in records] == [
        *((2, "1"), (3, None), (4, "3"), (5, "4")),
    ]
    assert "not CSV" in records[1].error


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"1", "has 1 field, but the header names 2"),
        (b"1,2,3", "has 3 fields, but the header names 2"),
        (b'1,"a"b', "not CSV"),
        (b"1,\xff", "line 2 is not UTF-8"),
    ],
)
def test_a_row_that_is_none_is_told_and_read_over(tmp_path: Path, row: bytes, words: str) -> None:
    records = list(_source(tmp_path / "rows.csv", b"id,text\n" + row + b"\n2,good\n").read())
    assert [record.values for record in records] == [None, {"id": "2", "text": "good"}]
    assert words in records[0].error


def test_a_last_row_that_is_cut_off_is_told(tmp_path: Path) -> None:
    records = list(_source(tmp_path / "rows.csv", b'id,text\n1,good\n2,"Tea is').read())
    assert "truncated" in records[1].error


def test_a_row_too_long_to_hold_is_read_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "MAX_ROW_BYTES", 1 << 20)
    text = b'id,text\n1,%s\n2,good\n3,"%s\n4,good\n' % (b"x" * (3 << 20), b"%s\n" % (b"y" * 9999) * 110)
    records = list(_source(tmp_path / "rows.csv", text).read())
    assert "longer than 1 MiB" in records[0].error
    assert records[1].values == {"id": "2", "text": "good"}
    assert "longer than 1 MiB" in records[2].error
    assert records[-1].values == {"id": "4", "text": "good"}


@pytest.mark.parametrize(("name", "between"), [("rows.tsv", "\t"), ("rows.csv", "\t"), ("rows.csv", ";")])
def test_the_delimiter_is_told_by_the_header(tmp_path: Path, name: str, between: str) -> None:
    (record,) = _source(tmp_path / name, f"id{between}text\n1{between}a, b\n".encode()).read()
    assert record.values == {"id": "1", "text": "a, b"}


def test_a_file_whose_header_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with raises(BatchError, "input_invalid", naming="CSV"):
        _source(tmp_path / "rows.csv", b"\xffid,text\n1,2\n")


@pytest.mark.parametrize(
    ("name", "text", "row"),
    [
        ("a.csv", b'id,"Pick one; two; three; four",prompt\n1,x,hi\n', {"id": "1", "prompt": "hi"}),
        ("a.tsv", b"id\tname, first\tprompt, text, long\n1\tx\thi\n", {"id": "1", "prompt, text, long": "hi"}),
        ("a.csv", b"sep=;\nid;prompt\n1;hi\n", {"id": "1", "prompt": "hi"}),
        ("a.csv", b'"id","prompt"\n"1","a ""b""; c"\n"2","two\nlines"\n', {"id": "1", "prompt": 'a "b"; c'}),
        ("a.csv", b"id|prompt\n1|hi, a\n2|b; c\n", {"id": "1", "prompt": "hi, a"}),
        ("a.csv", b"id,prompt\n1,it's fine\n2,well, no\n3,so, so\n", {"id": "1", "prompt": "it's fine"}),
        ("a.csv", b"\xef\xbb\xbfsep=,\r\nid,prompt\r\n1,hi\r\n", {"id": "1", "prompt": "hi"}),
        ("a.csv", b"prompt\nhello; world, you\n", {"prompt": "hello; world, you"}),
        ("a.csv", b"id;a,b;prompt\n1;2,5;hi\n2;3,5;ho\n", {"id": "1", "prompt": "hi"}),
    ],
)
def test_the_delimiter_is_one_that_fits_the_rows(tmp_path: Path, name: str, text: bytes, row: dict[str, str]) -> None:
    (tmp_path / name).write_bytes(text)
    source = open_source(InputSpec(address=str(tmp_path / name)))
    values = _check_reading_on(source)[0].values
    assert row.items() <= values.items()


def test_a_delimiter_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id|prompt, text\n1|hi\n")
    source = open_source(InputSpec(address=str(tmp_path / "a.csv"), delimiter="|"))
    assert next(iter(source.read())).values == {"id": "1", "prompt, text": "hi"}
