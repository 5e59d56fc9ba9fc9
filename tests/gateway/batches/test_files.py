"""The store of files: limits, tenants, ids from outside, and what an interrupted upload leaves."""

from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.gateway.batches.database import Database
from inflight.gateway.batches.files import FileStore
from tests.fixtures.errors import raises

HOSTILE = (
    *("", ".", "..", "../../etc/passwd", "file-", "file-" + "0" * 31, "file-" + "0" * 33, "file-" + "A" * 32),
    *("file-" + "0" * 32 + "\n", "file-" + "0" * 31 + "\0", "file-../" + "0" * 29, "/etc/passwd", "file-" + "٠" * 32),
    *("file-" + "0" * 100_000, "\ud800", None, 5, b"file-", ["file-"]),
)


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(Database(tmp_path), max_bytes=1000, max_batch_bytes=500, max_batch_rows=5)


def create(files: FileStore, *chunks: bytes, tenant: str = "", name: str = "rows.jsonl", purpose: str = "batch") -> str:
    file_id: str = files.create(tenant, name, purpose, None, chunks)["id"]
    return file_id


def names(files: FileStore) -> list[str]:
    return sorted(path.name for path in files.folder.iterdir())


def test_a_file_is_returned_as_it_was_uploaded(files: FileStore) -> None:
    found = files.create("", "../../rows.jsonl", "batch", None, [b"{}\n", b"", b'{"a"', b": 1}"])
    assert found == files.get("", found["id"])
    assert (found["object"], found["bytes"], found["status"]) == ("file", 11, "processed")
    assert (found["filename"], found["purpose"]) == ("../../rows.jsonl", "batch")
    assert found["expires_at"] - found["created_at"] == 2_592_000
    with files.open_content("", found["id"]) as content:
        assert files.delete("", found["id"]) == {"id": found["id"], "object": "file", "deleted": True}
        assert content.read() == b'{}\n{"a": 1}'
    for method in (files.get, files.open_content, files.delete):
        with raises(InflightError, "file_not_found", naming=found["id"]):
            method("", found["id"])
    assert names(files) == []


@pytest.mark.parametrize(
    ("content", "purpose"),
    [(b"x" * 501, "batch"), (b"x" * 1001, "user_data"), (b"{}\n" * 6, "batch"), (b"{}\n" * 5 + b"{", "batch")],
)
def test_too_large_a_file_is_refused_and_leaves_nothing(content: bytes, purpose: str, files: FileStore) -> None:
    for size in (1, 2, 7, len(content)):
        chunks = (content[begin : begin + size] for begin in range(0, len(content), size))
        with raises(InflightError, "file_too_large", naming="rows.jsonl"):
            create(files, *chunks, purpose=purpose)
    assert names(files) == []


@pytest.mark.parametrize("content", [b"{}\n" * 5, b"\n \n".join([b"{}"] * 5), b"{}\r\n" * 4 + b"{}", b"x" * 500, b""])
def test_blank_lines_are_no_requests(content: bytes, files: FileStore) -> None:
    for size in (1, 3, 1000):
        create(files, *(content[begin : begin + size] for begin in range(0, len(content), size)))


@pytest.mark.parametrize(
    ("name", "purpose", "naming"),
    [
        ("rows.csv", "batch", "filename"),
        ("", "batch", "filename"),
        ("a\0.jsonl", "batch", "filename"),
        ("a\ud800.jsonl", "batch", "filename"),
        ("a" * 600 + ".jsonl", "batch", "filename"),
        ("rows.jsonl", "batch_output", "purpose"),
        ("rows.jsonl", "../..", "purpose"),
    ],
)
def test_a_wrong_name_or_purpose_is_refused(name: str, purpose: str, naming: str, files: FileStore) -> None:
    with raises(InflightError, "invalid_parameter", naming=naming):
        create(files, b"{}", name=name, purpose=purpose)


@pytest.mark.parametrize("file_id", HOSTILE, ids=lambda value: repr(value)[:20])
def test_an_id_that_is_none_reaches_no_file(file_id: str, files: FileStore) -> None:
    create(files, b"{}")
    for method in (files.get, files.open_content, files.delete):
        with raises(InflightError, "file_not_found") as caught:
            method("", file_id)
        assert len(str(caught.value)) < 200
    assert len(names(files)) == 1


def test_a_tenant_has_only_its_own_files(files: FileStore) -> None:
    tenants = ("", "a", "A", "../a", "a\0", "\ud800")
    ids = {tenant: create(files, b"{}", tenant=tenant) for tenant in tenants}
    for tenant in tenants:
        assert [each["id"] for each in files.list(tenant)["data"]] == [ids[tenant]]
        for file_id in set(ids.values()) - {ids[tenant]}:
            for method in (files.get, files.open_content, files.delete):
                with raises(InflightError, "file_not_found"):
                    method(tenant, file_id)


def test_pages_of_a_list(files: FileStore) -> None:
    ids = [create(files, b"{}", purpose="user_data" if number == 1 else "batch") for number in range(4)]
    newest = files.list("", limit=3)
    assert [each["id"] for each in newest["data"]] == ids[:0:-1]
    assert (newest["first_id"], newest["last_id"], newest["has_more"]) == (ids[3], ids[1], True)
    assert [each["id"] for each in files.list("", after=ids[1])["data"]] == [ids[0]]
    assert [each["id"] for each in files.list("", order="asc", after=ids[1])["data"]] == ids[2:]
    assert [each["id"] for each in files.list("", purpose="user_data")["data"]] == [ids[1]]
    assert files.list("nobody") == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"limit": True}, {"order": "up"}, {"after": "../x"}):
        with raises(InflightError, "invalid_parameter", naming=next(iter(wrong))):
            files.list("", **wrong)


def test_expired_files_are_gone(files: FileStore) -> None:
    expired = [files.create("", "rows.jsonl", "batch", -1, [b"{}"])["id"] for _ in range(3)]
    kept = create(files, b"{}")
    assert [each["id"] for each in files.list("")["data"]] == [kept]
    with raises(InflightError, "file_not_found"):
        files.get("", expired[0])
    files.sweep()
    assert names(files) == [kept]


@pytest.mark.parametrize("text", [b"{" * 10_000, b"SQLite format 3\0" + b"\xff" * 10_000])
def test_a_damaged_database_is_one_sentence(text: bytes, files: FileStore) -> None:
    file_id = create(files, b"{}")
    files.database.close()
    (files.database.root / "batches.sqlite").write_bytes(text)
    with raises(InflightError, "job_damaged", naming="batches.sqlite"):
        FileStore(Database(files.database.root)).get("", file_id)


def test_an_upload_that_fails_is_no_file(files: FileStore) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"{}\n"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        files.create("", "rows.jsonl", "batch", None, chunks())
    assert names(files) == []


_UPLOAD = """
import os, sys
from pathlib import Path
from inflight.gateway.batches.database import Database
from inflight.gateway.batches.files import FileStore
upload = FileStore(Database(Path(sys.argv[1]))).begin("", "rows.jsonl")
upload.write(b"{}")
print("written", flush=True)
sys.stdin.read()
"""


def test_a_killed_upload_is_no_file_and_is_removed(files: FileStore) -> None:
    command = [sys.executable, "-P", "-c", _UPLOAD, str(files.database.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        files.sweep()
        assert len(names(files)) == 1  # its process lives
        process.kill()
    assert files.list("")["data"] == []
    files.sweep()
    assert names(files) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may be longer than a megabyte, as if the disk were full."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    files = FileStore(Database(tmp_path))
    with raises(InflightError, "disk_full", naming="rows.jsonl"):
        create(files, *[b"x" * 10_000] * 200)
    assert names(files) == []
    create(files, b"{}")


def test_a_full_disk_is_freed_by_deleting(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change of a record needs room too, which the content has to leave first."""
    file_id = create(files, b"{}")
    change = files.database.change

    def when_there_is_room(what: str) -> AbstractContextManager[sqlite3.Connection]:
        if names(files):
            raise InflightError("the disk has no room", "disk_full")
        return change(what)

    monkeypatch.setattr(files.database, "change", when_there_is_room)
    files.delete("", file_id)
    with raises(InflightError, "file_not_found"):
        files.get("", file_id)


def test_only_the_owner_can_read(files: FileStore) -> None:
    create(files, b"{}")
    paths = [files.folder, *files.database.root.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def test_the_same_output_is_one_file(files: FileStore, tmp_path: Path) -> None:
    (tmp_path / "output.jsonl").write_bytes(b"{}\n")
    found = [files.adopt("a", tmp_path / "output.jsonl", "batch", "output.jsonl", 100) for _ in range(2)]
    assert found[0] == found[1] == files.list("a")["data"][0]
    (tmp_path / "output.jsonl").unlink()
    with files.open_content("a", found[0]["id"]) as content:
        assert content.read() == b"{}\n"


def test_files_of_a_tenant_and_of_all_have_a_limit(tmp_path: Path) -> None:
    store = FileStore(Database(tmp_path), max_tenant_bytes=150, max_stored_bytes=250)
    kept = create(store, b"x" * 100, tenant="a")
    with raises(InflightError, "disk_full", naming="150"):
        create(store, b"x" * 100, tenant="a")
    create(store, b"x" * 100, tenant="b")
    with raises(InflightError, "disk_full", naming="250"):
        create(store, b"x" * 100, tenant="c")
    assert len(names(store)) == 2
    store.delete("a", kept)
    create(store, b"x" * 100, tenant="c")


def test_two_uploads_at_once_do_not_pass_the_limit_together(tmp_path: Path) -> None:
    store = FileStore(Database(tmp_path), max_tenant_bytes=150)
    first, second = store.begin("a", "1.jsonl"), store.begin("a", "2.jsonl")
    for upload in (first, second):
        upload.describe("batch")
        upload.write(b"x" * 100)
    first.commit()
    with second, raises(InflightError, "disk_full"):
        second.commit()
    assert len(names(store)) == 1


def test_the_last_of_the_disk_is_left_to_the_service(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(files.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**31 - 1))
    with raises(InflightError, "disk_full"):
        create(files, b"{}")


@pytest.mark.parametrize("purpose", ["batch", "user_data", "evals"])
def test_each_file_expires(files: FileStore, purpose: str) -> None:
    found = files.create("", "rows.jsonl", purpose, None, [b"{}"])
    assert found["expires_at"] - found["created_at"] == 2_592_000
