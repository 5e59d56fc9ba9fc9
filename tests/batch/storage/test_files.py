"""Files by their addresses: on a disk, on a real S3 API, over HTTP; compressed or not."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import InputSpec
from inflight.batch.sources.factory import open_source
from inflight.batch.storage.files import StoredFile
from tests.fixtures.errors import raises
from tests.fixtures.other_user import as_other_user
from tests.fixtures.s3_server import S3TestBucket, s3_server

_LINES = b"".join(b'{"id": %d, "prompt": "Tell me about tea."}\n' % number for number in range(5000))


@pytest.fixture(scope="module")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as running:
        yield running


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A folder behind HTTP, by a server that knows no ranges."""
    with _served(functools.partial(_Quiet, directory=str(tmp_path))) as address:
        yield address


class _Refusing(_Quiet):
    """A server that answers with the status that a request's path ends with; of a late one only once it is read."""

    def do_GET(self) -> None:
        self.send_error(int(self.path.partition("?")[0].rpartition("-")[2].partition(".")[0]))

    def do_HEAD(self) -> None:
        if "/late-" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
        else:
            self.do_GET()


@pytest.fixture
def refusing() -> Iterator[str]:
    with _served(_Refusing) as address:
        yield address


@contextmanager
def _served(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _fail(_: int) -> None:
    raise RuntimeError


def _check_all_is_read(address: str) -> None:
    source = open_source(InputSpec(address=address))
    records = list(source.read())
    assert [(record.values or {})["id"] for record in records] == list(range(5000))
    position = json.loads(json.dumps(records[3999].position))
    assert list(source.read(position, 4000)) == records[4000:]
    assert source.fraction_read(records[-1].position) == pytest.approx(1, abs=0.01)
    assert open_source(InputSpec(address=address)).fingerprint == source.fingerprint


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_objects_of_s3_are_read_from_any_row_on(storage: S3TestBucket, name: str) -> None:
    body = gzip.compress(_LINES) if name.endswith(".gz") else _LINES
    storage.client.put_object(Bucket=storage.bucket, Key=f"in/{name}", Body=body)
    _check_all_is_read(storage.address(f"in/{name}"))


def test_parquet_is_read_where_it_lies(storage: S3TestBucket) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = pyarrow.Table.from_pylist([{"id": number, "prompt": "Tell me about tea."} for number in range(5000)])
    body = io.BytesIO()
    parquet.write_table(rows, body, row_group_size=900)
    storage.client.put_object(Bucket=storage.bucket, Key="in/rows.parquet", Body=body.getvalue())
    source = open_source(InputSpec(address=storage.address("in/rows.parquet"), id="id"))
    records = list(source.read())
    assert [(record.values or {})["id"] for record in records] == list(range(5000))
    assert list(source.read(records[3999].position, 4000)) == records[4000:]


def test_another_object_has_another_fingerprint(storage: S3TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", storage.endpoint)
    file = StoredFile(f"s3://{storage.bucket}/in/change.jsonl")
    seen = set()
    for middle in (b"a", b"b"):  # of the same size, beginning and end
        body = _LINES + middle * 99 + _LINES
        storage.client.put_object(Bucket=storage.bucket, Key="in/change.jsonl", Body=body)
        seen.add(file.fingerprint())
    assert len(seen) == 2


def test_what_s3_says_is_a_sentence(storage: S3TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    there = f"s3://{storage.endpoint}"
    for address, code, words in (
        (f"{there}/{storage.bucket}/gone.jsonl", "input_not_found", "gone.jsonl"),
        (f"{there}/no-such-bucket/rows.jsonl", "storage_not_found", "no-such-bucket"),
    ):
        with raises(BatchError, code, naming=words):
            open_source(InputSpec(address=address))


def test_objects_are_written_whole_or_not_at_all(storage: S3TestBucket) -> None:
    file = StoredFile(storage.address("out/answers.jsonl.gz"))
    with pytest.raises(RuntimeError), file.writing() as writing:
        _fail(writing.write(_LINES))
    assert not file.exists()
    with file.writing() as writing:
        writing.write(_LINES)
    assert file.exists()
    with file.reading(10) as reading:
        assert reading.content.read() == _LINES[10:]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_files_are_compressed_by_their_suffix(tmp_path: Path, suffix: str) -> None:
    address = f"{tmp_path}/new/rows.jsonl{suffix}"
    with StoredFile(address).writing() as writing:
        writing.write(_LINES)
    size = Path(address).stat().st_size
    assert size == len(_LINES) if not suffix else size < len(_LINES) / 2
    _check_all_is_read(address)
    # What was compressed in several pieces is read to its end.
    Path(address).write_bytes(Path(address).read_bytes() * 2)
    assert len(list(open_source(InputSpec(address=address)).read())) == 10_000


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_file_is_told(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    with StoredFile(str(path)).writing() as writing:
        writing.write(_LINES)
    path.write_bytes(path.read_bytes()[:-30] if damage == "cut" else _LINES)
    with raises(BatchError, "input_invalid", naming=f"rows.jsonl{suffix}"):
        list(open_source(InputSpec(address=str(path))).read())


def test_a_web_server_without_ranges_is_read_too(web: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(_LINES)
    _check_all_is_read(f"{web}/rows.jsonl")
    (tmp_path / "rows.parquet").write_bytes(b"")
    with raises(BatchError, "input_not_found", naming="gone.jsonl"):
        open_source(InputSpec(address=f"{web}/gone.jsonl"))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, "storage_denied") for status in (401, 403)),
        *((status, "input_not_found") for status in (404, 410)),
        *((status, "storage_unreachable") for status in (429, 500, 503)),
    ],
)
def test_what_a_web_server_refuses_is_told_by_its_status_and_without_the_token(
    refusing: str, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all ways of asking for it: before a job it is opened, and read again on its way."""
    monkeypatch.setenv("SAS", "TOP/SECRET+123=")

    def read(file: StoredFile) -> None:
        with file.reading() as reading:
            reading.content.read()

    for name, asks in (("late", (read,)), ("rows", (StoredFile.size, StoredFile.fingerprint, read))):
        file = StoredFile(f"{refusing}/{name}-{status}.jsonl?X-Amz-Signature=${{SAS}}&sig=typed")
        for ask in asks:
            with pytest.raises(BatchError) as refused:
                ask(file)
            assert re.search("SECRET|typed", str(refused.value)) is None
            assert refused.value.code == code


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("http://127.0.0.1:9/rows.jsonl", "storage_unreachable", "http://127.0.0.1:9/rows.jsonl"),
        ("gs://bucket/rows.jsonl", "package_missing", "package"),
        ("s3://${NOT_SET_ANYWHERE}@bucket/rows.jsonl", "input_not_found", "NOT_SET_ANYWHERE"),
    ],
)
def test_an_address_that_nobody_can_read_is_told(address: str, code: str, words: str) -> None:
    with raises(BatchError, code, naming=words):
        open_source(InputSpec(address=address))


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "rows.jsonl").chmod(0o600)
    file = StoredFile(str(tmp_path / "rows.jsonl"))
    for doing, code in ((file.reading(), "storage_denied"), (file.writing(), "output_unwritable")):
        with (
            as_other_user(),
            raises(BatchError, code, naming="rows.jsonl"),
            doing,
        ):
            pass
    with raises(BatchError, "storage_denied", naming="s3://a/x"), StoredFile("s3://a/x").map_errors():
        raise PermissionError(13, "Permission denied")
