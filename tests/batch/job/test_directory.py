"""Where a job lies, and who has it."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import OutputSpec
from inflight.batch.reporting.progress import write_progress
from inflight.batch.reporting.status import job_status
from inflight.batch.runner import JobRunner
from inflight.batch.state.ledger import Ledger
from tests.batch.reporting.sample_progress import sample_progress
from tests.batch.sample_jobs import created, job_of
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.errors import raises
from tests.fixtures.other_user import as_other_user


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    return created(job_of(tmp_path, ("tea",)))


@pytest.mark.parametrize("named", ["answers.job", "answers.jsonl", "answers", "answers.job/", "./answers.jsonl"])
def test_it_is_found_by_its_own_name_and_its_outputs(
    directory: JobDirectory, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(directory.path.parent)
    assert JobDirectory.find(Path(named)).path.resolve() == directory.path


def test_it_is_found_by_its_outputs_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = job_of(tmp_path, ("tea",))

    def begun(address: str, table: str | None = None, path: Path | None = None) -> Path:
        output = OutputSpec(address=address, table=table)
        return created(job.model_copy(update={"output": output}), path).path

    stored = "s3://http://127.0.0.1:9000/shop/out/answers.parquet"
    (tmp_path / "kept").mkdir()
    for named, path in (
        (stored, begun(stored)),
        ("sqlite:///shop.db", begun("sqlite:///shop.db", "products")),
        ((tmp_path / "out.csv").as_uri(), begun("out.csv")),
        ("out.parquet", begun("out.parquet", path=Path("second.job"))),
    ):
        assert JobDirectory.find(named).path.resolve() == path.resolve()
    begun("sqlite:///shop.db", "orders")
    for unclear in ("sqlite:///shop.db", "out.jsonl", "s3://app:pass@elsewhere/answers.parquet"):
        with raises(BatchError, "job_not_found") as caught:
            JobDirectory.find(unclear)
        assert "app:pass" not in str(caught.value)


@pytest.mark.parametrize(("here", "named"), [("answers.job", "."), ("answers.job", ""), ("answers.job/parts", "..")])
def test_it_is_found_from_inside(
    directory: JobDirectory, monkeypatch: pytest.MonkeyPatch, here: str, named: str
) -> None:
    (directory.path / "parts").mkdir()
    monkeypatch.chdir(directory.path.parent / here)
    assert JobDirectory.find(Path(named)).path == directory.path


@pytest.mark.parametrize("named", [".", "..", "/", "nothing.jsonl"])
def test_where_there_is_none_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    with raises(BatchError, "job_not_found"):
        JobDirectory.find(Path(named))


@pytest.mark.parametrize("mode", [0o644, 0o600], ids=["may look", "may not"])
def test_another_user_sees_that_it_runs(mode: int) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        directory = created(job_of(folder, ("tea",)))
        with directory.locked():
            (directory.path / "lock").chmod(mode)
            write_progress(directory, sample_progress())
            with as_other_user():
                assert JobDirectory.find(directory.path).path == directory.path  # and no more of it than its status
                with raises(BatchError, "storage_denied"):
                    directory.job()
                assert directory.is_running is (True if mode == 0o644 else None)
                assert (job_status(directory).state, job_status(directory).running) == ("running", True)
        with as_other_user():
            assert directory.is_running is (False if mode == 0o644 else None)
        directory.path.chmod(0o700)
        with as_other_user():
            assert job_status(directory).state == "unknown"
            with raises(BatchError, "storage_denied"):
                JobDirectory.find(directory.path)
    finally:
        shutil.rmtree(folder)


def test_what_may_hold_a_password_is_its_owners_alone(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("tea", "{"))
    job = job.model_copy(update={"output": OutputSpec(address=f"sqlite:///{tmp_path}/a.db", table="answers")})
    directory = JobDirectory.from_output(job.output, tmp_path / "answers.job")
    modes: dict[str, int] = {}

    async def look(server: ScriptedBackend, prompt: str) -> str:
        modes.update({path.name: path.stat().st_mode & 0o777 for path in directory.path.iterdir()})
        return prompt

    before = os.umask(0o022)
    try:
        assert JobRunner(job, directory, backends=[ScriptedBackend(look)]).run().exit_code == 3
        with closing(Ledger(directory)) as ledger:
            ledger.snapshot(directory.path / "copy")
    finally:
        os.umask(before)
    modes |= {path.name: path.stat().st_mode & 0o777 for path in directory.path.iterdir()}
    private = {name: mode for name, mode in modes.items() if name in ("job.json", "copy") or "state.db" in name}
    assert private.keys() >= {"job.json", "copy", "state.db", "state.db-wal"}
    assert set(private.values()) == {0o600}
    assert modes["progress.json"] == modes["manifest.json"] == 0o644


def test_who_only_looks_keeps_nobody_out(directory: JobDirectory) -> None:
    with directory.locked():
        assert directory.is_running
        assert directory.is_running
    assert directory.is_running is False
    with directory.locked():
        pass


def test_a_directory_that_may_not_be_made_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    held = JobDirectory.from_output(job_of(tmp_path, ("tea",)).output).locked()
    with as_other_user(), raises(BatchError, "output_unwritable"), held:
        pass
