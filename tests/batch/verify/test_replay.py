"""Rows that are sent again: which, what is the same, and what a difference is."""

from __future__ import annotations

from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import RunOptions
from inflight.batch.runner import JobRunner
from inflight.batch.verify.replay import ReplayResult, replay
from tests.batch.sample_jobs import job_of
from tests.batch.scripted_backend import ScriptedBackend, echo
from tests.fixtures.errors import raises

PROMPTS = tuple(f"Describe {number}" for number in range(200))


@pytest.fixture
def finished(tmp_path: Path) -> JobDirectory:
    job = job_of(tmp_path, PROMPTS)
    directory = JobDirectory.from_output(job.output)
    JobRunner(job, directory, backends=[ScriptedBackend(echo)]).run()
    return directory


def replayed(directory: JobDirectory, share: float, backend: ScriptedBackend) -> ReplayResult:
    return replay(directory, share, RunOptions(), backends=[backend])


def test_the_same_share_of_rows_is_sent_each_time(finished: JobDirectory) -> None:
    sent: list[str] = []

    async def noting(server: ScriptedBackend, prompt: str) -> str | InflightError:
        sent.append(prompt)
        return prompt

    first, again = (replayed(finished, 0.2, ScriptedBackend(noting)) for _ in range(2))
    assert first == again
    assert 20 <= first.sent == first.equal <= 60
    assert sorted(sent[: first.sent]) == sorted(sent[first.sent :])
    assert replayed(finished, 1.0, ScriptedBackend(echo)).sent == 200
    assert replayed(finished, 1e-9, ScriptedBackend(echo)).sent == 1


def test_damaged_answers_are_left_to_the_check(finished: JobDirectory) -> None:
    with finished.result_file(RowStatus.OK).open("ab") as answers:
        answers.write(b'{"id": \n[1]\n')
    assert replayed(finished, 1.0, ScriptedBackend(echo)).equal == 200


def test_other_answers_failures_and_builds_are_named(finished: JobDirectory) -> None:
    async def changed(server: ScriptedBackend, prompt: str) -> str | InflightError:
        if prompt == "Describe 8":
            return InflightError("too long", "prompt_too_long")
        return "Describe nothing" if prompt == "Describe 7" else prompt

    result = replayed(finished, 1.0, ScriptedBackend(changed, build="two"))
    assert not result.same
    assert (result.sent, result.equal, result.build_then, result.build_now) == (200, 198, "one", "two")
    (difference,) = result.differences
    assert (difference.then, difference.now) == ("7", "nothing")
    assert [*result.failed.values()] == ["prompt_too_long"]


def test_a_changed_input_is_refused(finished: JobDirectory, tmp_path: Path) -> None:
    rows = Path(finished.job().input.address)
    rows.write_text(rows.read_text().replace("Describe 3", "Describe 4"))
    with raises(BatchError, "input_changed"):
        replayed(finished, 1.0, ScriptedBackend(echo))
