"""Answers in files: made whole at the end, on a disk and on S3, with errors and dead letters beside them."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.outputs.factory import create_output
from inflight.batch.outputs.interface import OutputWriter
from tests.batch.outputs.answers import files, job, plain
from tests.fixtures.errors import raises
from tests.fixtures.s3_server import S3TestBucket

ANSWERS = [
    plain(1, 'He said: "no",\nand left; a\ttab', price=2, tags=["x"], note=None),
    plain(2, "", price=2.5, tags=None, note="n"),
    plain(3, "naïve 😀\r\nline", price=None, tags=[], note="m"),
]


def _destination(address: str, tmp_path: Path, keep: tuple[str, ...] = (), **output: Any) -> OutputWriter:
    described = job(address, keep, **output)
    directory = JobDirectory(tmp_path / "one.job", described.output)
    directory.path.mkdir(exist_ok=True)
    made = create_output(described, directory)
    assert made is not None
    return made


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.parquet", "a.jsonl.gz"])
def test_what_is_written_says_what_the_job_has(tmp_path: Path, name: str) -> None:
    address = str(tmp_path / "out" / name)
    destination = _destination(address, tmp_path, keep=("price", "tags", "note"))
    destination.check()
    lines = files(tmp_path, ANSWERS, errors=[b'{"id":4}'])
    assert destination.finalize(lines) == [address, str(tmp_path / "out/a.errors.jsonl")]
    first = Path(address).read_bytes()
    assert list(destination.find_differences(lines)) == []
    destination.finalize(lines)
    assert Path(address).read_bytes() == first
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.errors.jsonl", name}
    assert list(destination.find_differences(files(tmp_path, [*ANSWERS[:2], plain(3, "other"), plain(4)]))) == [
        "3",
        "4",
    ]


def test_csv_is_read_by_others_as_it_was_meant(tmp_path: Path) -> None:
    address = tmp_path / "answers.csv"
    _destination(str(address), tmp_path, keep=("price", "tags", "note")).finalize(files(tmp_path, ANSWERS))
    with address.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "id": "1",
        "text": 'He said: "no",\nand left; a\ttab',
        "finish_reason": "stop",
        "input_tokens": "7",
        "output_tokens": "3",
        "price": "2",
        "tags": '["x"]',
        "note": "",
    }
    assert rows[2]["text"] == "naïve 😀\r\nline"


@pytest.mark.parametrize("name", ["none.csv", "none.parquet", "none.jsonl.gz"])
def test_no_answer_makes_an_output_without_rows(tmp_path: Path, name: str) -> None:
    destination = _destination(str(tmp_path / name), tmp_path)
    assert destination.finalize({}) == [str(tmp_path / name)]
    assert list(destination.find_differences({})) == []


def test_errors_that_are_no_more_are_taken_away(tmp_path: Path) -> None:
    destination = _destination(str(tmp_path / "a.csv"), tmp_path)
    destination.finalize(files(tmp_path, ANSWERS, dead=[b"{}"]))
    assert (tmp_path / "a.dead.jsonl").exists()
    (tmp_path / "dead.jsonl").write_bytes(b"")
    destination.finalize(files(tmp_path, ANSWERS))
    assert not (tmp_path / "a.dead.jsonl").exists()


def test_the_jobs_own_file_needs_no_destination(tmp_path: Path) -> None:
    described = job(str(tmp_path / "answers.jsonl"))
    assert create_output(described, JobDirectory.from_output(described.output)) is None


def test_a_spreadsheet_is_no_output(tmp_path: Path) -> None:
    with raises(BatchError, "output_invalid", naming="answers.xlsx"):
        _destination("answers.xlsx", tmp_path)


def test_what_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_text("mine")
    with raises(BatchError, "output_exists", naming="answers.csv"):
        _destination(str(tmp_path / "answers.csv"), tmp_path).check()
    (tmp_path / "one.job" / "state.db").touch()
    _destination(str(tmp_path / "answers.csv"), tmp_path).check()


@pytest.mark.parametrize("name", ["answers.errors.jsonl", "answers.dead.jsonl"])
@pytest.mark.parametrize("output", ["answers.csv", "answers.parquet", "answers.jsonl.gz"])
def test_so_is_what_lies_where_errors_and_dead_letters_go(tmp_path: Path, output: str, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with raises(BatchError, "output_exists", naming=name):
        _destination(str(tmp_path / output), tmp_path).check()


def test_what_somebody_has_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """Another job, say, whose output has the same name with another suffix."""
    destination = _destination(str(tmp_path / "a.csv"), tmp_path)
    destination.check()
    (tmp_path / "a.errors.jsonl").write_text("theirs")
    destination.finalize(files(tmp_path, ANSWERS))
    assert (tmp_path / "a.errors.jsonl").read_text() == "theirs"
    lines = files(tmp_path, ANSWERS, errors=[b'{"id":4}'])
    with raises(BatchError, "output_exists", naming="a.errors.jsonl"):
        destination.finalize(lines)
    (tmp_path / "a.errors.jsonl").unlink()
    assert len(destination.finalize(lines)) == 2
    assert len(destination.finalize(lines)) == 2, "its own it may write again"


def test_what_is_somebody_elses_on_a_storage_is_left_alone(storage: S3TestBucket, tmp_path: Path) -> None:
    storage.client.put_object(Bucket=storage.bucket, Key="theirs/answers.errors.jsonl", Body=b"mine")
    with raises(BatchError, "output_exists", naming="answers.errors.jsonl"):
        _destination(storage.address("theirs/answers.parquet"), tmp_path).check()


@pytest.mark.parametrize("point", ["output.write", "output.rename"])
def test_a_full_disk_leaves_the_old_file_and_the_next_try_finishes(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = _destination(str(tmp_path / "a.csv"), tmp_path)
    destination.finalize(files(tmp_path, ANSWERS[:1]))
    before = (tmp_path / "a.csv").read_bytes()
    monkeypatch.setitem(failpoints._ARMED, point, (1, "full"))
    with raises(BatchError, "disk_full"):
        destination.finalize(files(tmp_path, ANSWERS))
    assert (tmp_path / "a.csv").read_bytes() == before
    monkeypatch.delitem(failpoints._ARMED, point)
    monkeypatch.setattr(failpoints, "_REACHED", {})
    destination.finalize(files(tmp_path, ANSWERS))
    assert list(destination.find_differences(files(tmp_path, ANSWERS))) == []


@pytest.mark.parametrize("name", ["answers.csv", "answers.parquet", "answers.jsonl", "answers.jsonl.gz"])
def test_s3_has_it_whole(storage: S3TestBucket, tmp_path: Path, name: str) -> None:
    folder = f"whole-{name}"
    destination = _destination(storage.address(f"{folder}/{name}"), tmp_path)
    destination.check()
    assert storage.names(folder) == set()
    lines = files(tmp_path, ANSWERS, dead=[b'{"line":7}'])
    written = destination.finalize(lines)
    assert written == [storage.address(f"{folder}/{name}"), storage.address(f"{folder}/answers.dead.jsonl")]
    assert storage.names(folder) == {name, "answers.dead.jsonl"}
    assert list(destination.find_differences(lines)) == []
    body = storage.client.get_object(Bucket=storage.bucket, Key=f"{folder}/{name}")["Body"].read()
    if "jsonl" in name:
        text = gzip.decompress(body) if name.endswith("gz") else body
        assert text == b"".join(line + b"\n" for line in ANSWERS)


def test_a_bucket_that_is_not_there_is_told_before_anything_is_asked(storage: S3TestBucket, tmp_path: Path) -> None:
    address = f"s3://{storage.endpoint}/no-such-bucket/answers.csv"
    with raises(BatchError, "storage_not_found", naming="no-such-bucket"):
        _destination(address, tmp_path).check()


def test_a_bucket_that_went_away_meanwhile_stops_the_end_and_not_the_job(storage: S3TestBucket, tmp_path: Path) -> None:
    bucket = f"{storage.bucket}-gone"
    storage.client.create_bucket(Bucket=bucket)
    destination = _destination(f"s3://{storage.endpoint}/{bucket}/answers.csv", tmp_path)
    destination.check()
    storage.client.delete_bucket(Bucket=bucket)
    lines = files(tmp_path, ANSWERS)
    with raises(BatchError, "storage_not_found", naming="answers.csv"):
        destination.finalize(lines)
    storage.client.create_bucket(Bucket=bucket)
    destination.finalize(lines)
    assert list(destination.find_differences(lines)) == []


def test_a_storage_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with raises(BatchError, "storage_unreachable"):
        _destination("s3://http://127.0.0.1:1/bucket/answers.csv", tmp_path).check()


def test_an_upload_that_dies_shows_nothing_and_the_next_one_finishes(storage: S3TestBucket, tmp_path: Path) -> None:
    """Killed once all is sent, but not yet said to be complete."""
    address = storage.address("died/answers.parquet")
    lines = files(tmp_path, ANSWERS)
    program = (
        "import sys; from pathlib import Path; from inflight.batch.job.rows import RowStatus;"
        "from inflight.batch.outputs.file import FileOutput;"
        "from inflight.batch.outputs.parquet import ParquetOutputFormat;"
        "from inflight.batch.job.directory import JobDirectory;"
        "made = FileOutput(sys.argv[1], ParquetOutputFormat((), '', 'generate'), JobDirectory(Path('one.job')), '');"
        "made.finalize({RowStatus.OK: Path(sys.argv[2])})"
    )
    died = subprocess.run(
        [sys.executable, "-c", program, address, str(tmp_path / "ok.jsonl")],
        env={**os.environ, failpoints.VARIABLE: "output.upload:1:kill"}, check=False,
    )  # fmt: skip
    assert died.returncode == -9
    assert storage.names("died") == set()
    destination = _destination(address, tmp_path)
    destination.finalize(lines)
    assert list(destination.find_differences(lines)) == []


def test_an_address_that_can_only_be_read(tmp_path: Path, storage: S3TestBucket) -> None:
    with raises(BatchError, "output_invalid", naming="answers.csv"):
        _destination(f"{storage.endpoint}/answers.csv", tmp_path).check()


@pytest.mark.parametrize("name", ["file/answers.csv", "folder.csv"])
def test_a_path_that_can_never_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BatchError) as caught:
        _destination(str(tmp_path / name), tmp_path).check()
    assert caught.value.code in ("output_invalid", "output_exists")
    with pytest.raises(BatchError) as caught:
        _destination(str(tmp_path / name), tmp_path).finalize({})
    assert caught.value.code in ("output_invalid", "output_exists")


def test_a_damaged_output_is_told(tmp_path: Path) -> None:
    destination = _destination(str(tmp_path / "a.csv"), tmp_path)
    lines = files(tmp_path, ANSWERS)
    destination.finalize(lines)
    (tmp_path / "a.csv").write_text("id,text\n")
    with raises(BatchError, "job_damaged", naming="a.csv"):
        list(destination.find_differences(lines))
