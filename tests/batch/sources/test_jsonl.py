"""JSON lines as rows: what is read, the error for an invalid line, and reading from any position on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import InputSpec
from inflight.batch.row_formats.detection import first_record
from inflight.batch.sources import jsonl
from inflight.batch.sources.factory import open_source
from inflight.batch.sources.interface import RowSource
from tests.fixtures.errors import raises

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_ROWS = st.lists(st.dictionaries(_TEXTS, _TEXTS | st.integers(-(2**63), 2**63) | st.none(), max_size=3), min_size=1)


def _source(path: Path, text: bytes) -> RowSource:
    path.write_bytes(text)
    return open_source(InputSpec(address=str(path)))


@settings(max_examples=40, deadline=None)
@given(rows=_ROWS, blank=st.booleans(), end=st.booleans())
def test_reading_on_after_any_row_gives_the_rest(tmp_path_factory: Any, rows: Any, blank: bool, end: bool) -> None:
    between = "\n \n" if blank else "\n"
    text = between.join(json.dumps(row, ensure_ascii=False) for row in rows) + ("\n" if end else "")
    source = _source(tmp_path_factory.mktemp("rows") / "rows.jsonl", text.encode())
    records = list(source.read())
    assert [record.values for record in records] == rows
    for number, record in enumerate(records):
        position = json.loads(json.dumps(record.position))
        assert list(source.read(position, record.line)) == records[number + 1 :]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1', "not JSON"),
        (b"[1, 2]", "a list; it must be an object"),
        (b"null", "null; it must be an object"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\0"}', "a NUL byte"),
        (b'{"a": "\\ud800"}', "not JSON: no low surrogate"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "not JSON: number is infinity"),
        (b"[" * 5000, "not JSON: depth limit"),
        (b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}", "nested too deep"),
        (b'{"a": 1, "b" : {"c":1, "c"\t: 2}}', "names 'c' twice"),
        (b'{"a": 1, "a": "b\\":"}', "names 'a' twice"),
    ],
)
def test_a_line_that_is_no_row_is_told_and_read_over(tmp_path: Path, line: bytes, words: str) -> None:
    records = list(_source(tmp_path / "rows.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 2}\n').read())
    assert [record.values for record in records] == [{"a": 1}, None, {"a": 2}]
    assert words in records[1].error
    assert records[1].line == 2


def test_a_last_line_that_is_cut_off_is_told(tmp_path: Path) -> None:
    records = list(_source(tmp_path / "rows.jsonl", b'{"a": 1}\n{"a": "Tea is').read())
    assert [record.values for record in records] == [{"a": 1}, None]
    assert "truncated" in records[1].error


def test_a_line_too_long_to_hold_is_read_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_ROW_BYTES", 1 << 20)
    records = list(_source(tmp_path / "rows.jsonl", b'{"a": "%s"}\n{"a": 2}\n' % (b"x" * (3 << 20))).read())
    assert [record.values for record in records] == [None, {"a": 2}]
    assert "longer than 1 MiB" in records[0].error


def test_colons_and_quotes_in_texts_name_nothing_twice(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf{"q": "he said \\"a\\": \\"b\\": c", "list": [{"q": 1}, {"q": "\\u0022:"}]}\n'
    (record,) = _source(tmp_path / "rows.jsonl", text).read()
    assert record.values == {"q": 'he said "a": "b": c', "list": [{"q": 1}, {"q": '":'}]}


def test_the_share_that_is_read_grows_to_all(tmp_path: Path) -> None:
    source = _source(tmp_path / "rows.jsonl", b'{"a": 1}\n' * 100)
    records = list(source.read())
    assert source.fraction_read(records[49].position) == pytest.approx(0.5)
    assert source.fraction_read(records[-1].position) == 1
    resumed = _source(tmp_path / "rows.jsonl", b'{"a": 1}\n' * 100)
    assert resumed.fraction_read(records[49].position) == pytest.approx(0.5), "before anything is read again"


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("empty.jsonl.gz", gzip.compress(b"", mtime=0), "input_invalid", "blank"),
        (".", None, "input_invalid", "suffix"),
    ],
)
def test_an_input_that_is_none_as_a_whole_is_refused(
    tmp_path: Path, name: str, text: bytes | None, code: str, words: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with raises(BatchError, code, naming=words):
        open_source(InputSpec(address=str(tmp_path / name)))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with raises(BatchError, "input_not_found"):
        open_source(InputSpec(address=str(tmp_path), format="jsonl"))


def test_another_content_has_another_fingerprint(tmp_path: Path) -> None:
    text = b'{"a": 1}\n' * 40_000
    first = _source(tmp_path / "rows.jsonl", text).fingerprint
    assert _source(tmp_path / "a copy.jsonl", text).fingerprint == first
    for other in (text + b"\n", b'{"a": 2}\n' + text[9:], text[:-9] + b'{"a": 2}\n'):
        assert _source(tmp_path / "rows.jsonl", other).fingerprint != first


def test_a_file_of_nothing_but_bad_lines_is_another_format(tmp_path: Path) -> None:
    text = b'{"a": 1,\n "b": 2}\n' * 501
    with raises(BatchError, "input_invalid", naming="1000"):
        first_record(_source(tmp_path / "rows.jsonl", text))
    record = first_record(_source(tmp_path / "rows.jsonl", text[: 18 * 499] + b'{"a": 1}\n'))
    assert record is not None
    assert record.values == {"a": 1}
