"""A job goes on as it began, or not at all; and whatever is not its own is left as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.runner import JobRunner
from tests.batch.sample_jobs import job_of, run, running
from tests.batch.scripted_backend import ScriptedBackend, echo
from tests.fixtures.errors import raises


def resumed(job: Job, directory: JobDirectory) -> int:
    return JobRunner(job, directory, backends=[ScriptedBackend(echo, "gpu1:8001")]).run().exit_code


def unfinished(folder: Path) -> Job:
    """A job that was cancelled after its first row."""
    job = job_of(folder, ("tea", "stuck"))
    with running(job):
        pass
    return job


def mine(path: Path) -> bytes:
    """A file that is not the job's."""
    path.write_bytes(b'{"id": "v2", "text": "mine"}\n' * 1000)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["v2.jsonl", "v2.csv", "answers.csv"])
def test_a_directory_of_a_job_with_another_output_is_refused_and_nothing_is_cut(tmp_path: Path, name: str) -> None:
    job = unfinished(tmp_path)
    ours = (tmp_path / "answers.jsonl").read_bytes()
    theirs = mine(tmp_path / name)
    other = job.model_copy(update={"output": OutputSpec(address=str(tmp_path / name))})
    with raises(BatchError, "job_mismatch", naming=("answers.job", "--job")):
        resumed(other, JobDirectory.from_output(other.output, tmp_path / "answers.job"))
    assert (tmp_path / name).read_bytes() == theirs
    assert (tmp_path / "answers.jsonl").read_bytes() == ours
    assert resumed(job, JobDirectory.from_output(job.output)) == 0


@pytest.mark.parametrize(
    ("part", "change", "option"),
    [
        ("defaults", {"max_tokens": 9}, "--max-tokens"),
        ("defaults", {"temperature": 0.5}, "--temperature"),
        ("input", {"template": "Say {{ prompt }}"}, "--template"),
        ("input", {"chat": True}, "--chat"),
    ],
)
def test_another_template_or_sampling_is_refused(
    tmp_path: Path, part: str, change: dict[str, object], option: str
) -> None:
    job = unfinished(tmp_path)
    other = job.model_copy(update={part: getattr(job, part).model_copy(update=change)})
    with raises(BatchError, "job_mismatch", naming=option):
        resumed(other, JobDirectory.from_output(job.output))


def test_another_model_is_refused(tmp_path: Path) -> None:
    job = unfinished(tmp_path)
    end = JobRunner(job, JobDirectory.from_output(job.output), backends=[ScriptedBackend(build="two")]).run()
    assert (end.code, end.exit_code) == ("job_mismatch", 1)
    assert "another build of the model" in end.message


def test_a_second_process_is_refused_while_one_runs(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("stuck",))
    with running(job) as directory, raises(BatchError, "job_running", naming="answers.job"):
        resumed(job, JobDirectory.from_output(job.output))
    assert not directory.is_running


def test_a_state_is_bound_to_its_output_where_the_plan_is_gone(tmp_path: Path) -> None:
    job = unfinished(tmp_path)
    (tmp_path / "answers.job/job.json").unlink()
    theirs = mine(tmp_path / "v2.jsonl")
    other = job.model_copy(update={"output": OutputSpec(address=str(tmp_path / "v2.jsonl"))})
    with raises(BatchError, "job_mismatch", naming="--out"):
        resumed(other, JobDirectory.from_output(other.output, tmp_path / "answers.job"))
    assert (tmp_path / "v2.jsonl").read_bytes() == theirs


def test_an_input_that_changed_is_refused_before_anything_is_cut(tmp_path: Path) -> None:
    job = unfinished(tmp_path)
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(b"mine\n")
    rows = Path(job.input.address).read_bytes()
    Path(job.input.address).write_bytes(rows.replace(b"tea", b"tee"))
    with raises(BatchError, "input_changed"):
        resumed(job, JobDirectory.from_output(job.output))
    assert (tmp_path / "answers.jsonl").read_bytes().endswith(b"mine\n")


def test_what_is_added_to_a_finished_jobs_output_stays(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("tea",))
    directory, _ = run(job)
    with directory.result_file(RowStatus.OK).open("ab") as file:
        file.write(b"mine\n")
    assert resumed(job, directory) == 0
    assert directory.result_file(RowStatus.OK).read_bytes().endswith(b"mine\n")


def test_a_job_knows_its_files_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Monday's answers have the same name as Tuesday's."""
    for day in ("mon", "tue"):
        (tmp_path / day).mkdir()
        monkeypatch.chdir(tmp_path / day)
        unfinished(Path())
    monday = tmp_path / "mon/answers.jsonl"
    before = mine(monday)
    monkeypatch.chdir(tmp_path / "mon")
    directory = JobDirectory.find(Path("../tue/answers.jsonl"))
    assert directory.result_file(RowStatus.OK) == tmp_path / "tue/answers.jsonl"
    assert resumed(directory.job(), directory) == 0
    assert monday.read_bytes() == before
    assert (tmp_path / "tue/answers.jsonl").read_bytes().count(b"\n") == 2


def test_an_input_may_lie_elsewhere_and_an_output_may_not(tmp_path: Path) -> None:
    job = unfinished(tmp_path)
    (tmp_path / "else").mkdir()
    moved = shutil.move(job.input.address, tmp_path / "else/rows.jsonl")
    elsewhere = job.model_copy(update={"input": job.input.model_copy(update={"address": str(moved)})})
    shutil.copytree(tmp_path / "answers.job", tmp_path / "else/answers.job")
    shutil.copy(tmp_path / "answers.jsonl", tmp_path / "else")
    theirs = mine(tmp_path / "answers.jsonl")
    with raises(BatchError, "job_mismatch", naming="answers.job"):
        resumed(elsewhere, JobDirectory.find(tmp_path / "else/answers.jsonl"))
    assert (tmp_path / "answers.jsonl").read_bytes() == theirs
    shutil.copy(tmp_path / "else/answers.jsonl", tmp_path)
    assert resumed(elsewhere, JobDirectory.from_output(job.output)) == 0


@pytest.mark.parametrize("kind", ["dead", "errors"])
@pytest.mark.parametrize("output", ["y.jsonl", "y.csv"])
def test_rows_that_lie_where_the_job_would_write_are_left_alone(tmp_path: Path, output: str, kind: str) -> None:
    job = job_of(tmp_path, ("tea", "{"))
    rows = Path(shutil.move(job.input.address, tmp_path / f"y.{kind}.jsonl"))
    before = rows.read_bytes()
    job = Job(input=InputSpec(address=str(rows)), output=OutputSpec(address=str(tmp_path / output)))
    with raises(BatchError, "output_exists", naming=rows.name):
        resumed(job, JobDirectory.from_output(job.output))
    assert rows.read_bytes() == before
    assert not (tmp_path / "y.job/state.db").exists()


def test_an_output_that_can_never_be_is_no_reason_to_try_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("tea",))
    for output in (OutputSpec(address=str(tmp_path / "answers")), OutputSpec(address=f"sqlite:///{tmp_path}/a.db")):
        job = job.model_copy(update={"output": output})
        with raises(BatchError, "output_invalid"):
            resumed(job, JobDirectory.from_output(output, tmp_path / "a.job"))
