"""Jobs that transcribe audio files, by a real Triton whose model says what it was sent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import InputRecord, InvalidRow, RowStatus, TranscribeRequest
from inflight.batch.job.spec import EncodeSpec, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.row_formats.audio import AudioRowFormat
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.storage import audio_file
from inflight.batch.storage.audio_file import open_audio
from inflight.batch.verify.checker import verify
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.errors import raises
from tests.fixtures.voice import encoded, silence, voice

MakeJob = Callable[..., Job]
SECONDS = 2


@pytest.fixture(scope="module")
def spoken() -> Any:
    """Two seconds of a voice."""
    return voice(SECONDS)


@pytest.fixture
def make_job(scripted_encoders: EncoderServer, spoken: Any, tmp_path: Path) -> MakeJob:
    """Makes a job over rows, in whose folder there are clip-0.wav, ..., which differ in their length."""
    for number in range(6):
        (tmp_path / f"clip-{number}.wav").write_bytes(encoded(spoken[: len(spoken) - 100 * number]))

    def make(rows: list[dict[str, Any]], out: str = "said.jsonl", **encode: Any) -> Job:
        source = tmp_path / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Job(
            input=InputSpec(address=str(source), id="id", prompt="audio"),
            output=OutputSpec(address=str(tmp_path / out)),
            encode=EncodeSpec(task="transcribe", **encode),
            run_options=RunOptions(servers=(scripted_encoders.grpc_address,), checkpoint_seconds=0.05),
        )

    return make


def run(job: Job) -> tuple[JobDirectory, JobResult]:
    directory = JobDirectory.from_output(job.output)
    return directory, JobRunner(job, directory).run()


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "audio": f"clip-{n}.wav"} for n in range(count)]


def test_each_row_has_what_its_audio_says(make_job: MakeJob, tmp_path: Path) -> None:
    rows = [*rows_of(3), {"id": 9, "audio": str(tmp_path / "clip-0.wav"), "language": "fr"}]
    directory, result = run(make_job(rows, to_english=True, word_timestamps=True))
    assert result.exit_code == 0
    assert verify(directory).complete
    lines = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [0, 1, 2, 9]
    for number, line in enumerate(lines[:3]):
        samples = SECONDS * 16_000 - 100 * number
        assert line["text"].startswith(f"<|translate|> {samples} samples")
        assert (line["language"], line["duration"]) == ("de", pytest.approx(samples / 16_000))
        assert [len(segment["words"]) for segment in line["segments"]] == [1, 1]
    assert (lines[3]["language"], lines[3]["text"].split()[0]) == ("fr", "<|fr|><|translate|>")
    assert result.counts.audio_seconds == pytest.approx(sum(line["duration"] for line in lines))
    assert "8 s of audio" in (directory.path / "summary.txt").read_text()


@pytest.mark.parametrize("out", ["said.parquet", "said.csv"])
def test_transcripts_are_columns(out: str, make_job: MakeJob, tmp_path: Path) -> None:
    directory, result = run(make_job(rows_of(2), out))
    assert result.exit_code == 0
    assert verify(directory).complete
    if out.endswith("parquet"):
        assert json.loads(pq.read_table(tmp_path / out).to_pylist()[1]["segments"])[0]["start"] == 0


def test_a_row_whose_audio_fails_has_its_own_error(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "notes.wav").write_text("no sound")
    (tmp_path / "quiet.wav").write_bytes(encoded(silence(1)))
    os.mkfifo(tmp_path / "pipe.wav")
    wanted = {
        "clip-0.wav": "",
        "quiet.wav": "",
        "missing.wav": "input_not_found",
        "pipe.wav": "input_not_found",
        "notes.wav": "audio_unsupported",
        "clip-1.wav": "audio_too_long",
    }
    (tmp_path / "clip-1.wav").write_bytes(encoded(silence(20)))
    directory, result = run(make_job([{"id": name, "audio": name} for name in wanted], max_seconds=10))
    failed = [json.loads(line) for line in directory.result_file(RowStatus.ERROR).read_text().splitlines()]
    assert {line["id"]: line["code"] for line in failed} == {name: code for name, code in wanted.items() if code}
    assert (result.exit_code, result.counts.ok) == (3, 2)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"audio": "a/b.wav"}, "/data/a/b.wav"),
        ({"audio": "/other/b.wav"}, "/other/b.wav"),
        ({"audio": "s3://bucket/b.wav"}, "s3://bucket/b.wav"),
        ({"audio": "https://example.com/?key=${SECRET}"}, "row_invalid"),
        ({"audio": ""}, "row_invalid"),
        ({"other": "b.wav"}, "row_invalid"),
        ({"audio": "/other/b.wav", "language": ""}, "/other/b.wav"),
        ({"audio": "b.wav", "language": "English"}, "invalid_parameter"),
    ],
)
def test_a_row_names_its_audio(values: dict[str, Any], wanted: str) -> None:
    form = AudioRowFormat(InputSpec(address="/data/rows.jsonl", prompt="audio"), EncodeSpec(task="transcribe"))
    row = form.parse(0, InputRecord(1, values, 1))
    if isinstance(row, InvalidRow):
        assert row.code == wanted
    else:
        assert isinstance(row.request, TranscribeRequest)
        assert row.request.audio == wanted


def test_rows_of_a_database_are_in_no_folder() -> None:
    form = AudioRowFormat(InputSpec(address="sqlite:///a.db", prompt="audio"), EncodeSpec(task="transcribe"))
    assert isinstance(row := form.parse(0, InputRecord(1, {"audio": "b.wav"}, 1)), InvalidRow)
    assert row.code == "row_invalid"


def test_options_that_no_server_accepts_are_refused_before_the_first_row(make_job: MakeJob) -> None:
    with raises(BatchError, "input_invalid", naming="English"):
        run(make_job(rows_of(1), language="English"))


def test_audio_of_a_storage_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/clips/a.wav", b"sound")
    with open_audio("memory://clips/a.wav") as (file, version):
        assert file.read() == b"sound"
        assert os.fstat(file.fileno()).st_size == 5
    fsspec.filesystem("memory").pipe("/clips/a.wav", b"other")
    with open_audio("memory://clips/a.wav") as (_, later):
        assert later != version
    monkeypatch.setattr(audio_file, "MAX_BYTES", 4)
    with raises(InflightError, "audio_too_long"), open_audio("memory://clips/a.wav"):
        pass
