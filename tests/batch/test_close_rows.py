"""A job that is closed: rows with a result keep it, all others get the error that was given."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.reporting.progress import JobState, read_progress
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.verify.checker import verify
from tests.batch.sample_jobs import job_of, run, running

EXPIRED = InflightError("the window ended", "job_expired")


def close(job: Job, error: InflightError = EXPIRED) -> tuple[JobDirectory, JobResult]:
    directory = JobDirectory.from_output(job.output)
    return directory, JobRunner(job, directory, backends=[]).close(error)


def errors(directory: JobDirectory) -> list[dict[str, object]]:
    return [json.loads(line) for line in directory.result_file(RowStatus.ERROR).read_text().splitlines()]


@pytest.mark.parametrize("begun", [False, True])
def test_rows_without_a_result_get_the_error(begun: bool, tmp_path: Path) -> None:
    prompts = ("tea", "stuck", "milk", "{", "so long", "cup")
    job = job_of(tmp_path, prompts)
    if begun:
        with running(job) as directory:
            pass
        before = directory.result_file(RowStatus.OK).read_bytes()
        assert before
    directory, result = close(job)
    assert (result.state, result.exit_code) == (JobState.FINISHED, 3)
    answers = directory.result_file(RowStatus.OK)
    assert answers.exists() is begun
    assert not begun or answers.read_bytes().startswith(before)
    assert Counter(line["code"] for line in errors(directory))["job_expired"] == result.counts.error
    assert result.counts.ok + result.counts.error + result.counts.dead == len(prompts)
    assert result.counts.dead == 1
    assert verify(directory).complete
    progress = read_progress(directory)
    assert progress is not None
    assert progress.state is JobState.FINISHED
    again = close(job, InflightError("too late", "cancelled"))[1]
    assert (again.state, again.counts.codes) == (JobState.FINISHED, result.counts.codes)


def test_a_finished_job_keeps_its_results(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("tea", "cup"))
    directory, result = run(job)
    before = directory.result_file(RowStatus.OK).read_bytes()
    assert close(job)[1].counts.as_dict() == result.counts.as_dict()
    assert directory.result_file(RowStatus.OK).read_bytes() == before


@pytest.mark.parametrize(
    ("code", "openai_code"),
    [("job_expired", "batch_expired"), ("cancelled", "batch_cancelled"), ("job_failed", "job_failed")],
)
def test_requests_of_openai_s_format_have_openai_s_codes(code: str, openai_code: str, tmp_path: Path) -> None:
    rest = {"method": "POST", "url": "/v1/completions"}
    bodies = [{"model": "tiny", "prompt": "tea"}, {"model": "tiny", "prompt": "tea", "stream": True}]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"custom_id": f"r{n}", "body": b, **rest}) + "\n" for n, b in enumerate(bodies)))
    job = Job(input=InputSpec(address=str(rows)), output=OutputSpec(address=str(tmp_path / "answers.jsonl")))
    directory, result = close(job, InflightError("it ended", code))
    closed, refused = errors(directory)
    assert (closed["custom_id"], closed["response"]) == ("r0", None)
    assert closed["error"] == {"code": openai_code, "message": "it ended"}
    assert refused["error"] is None
    assert result.counts.error == 2
