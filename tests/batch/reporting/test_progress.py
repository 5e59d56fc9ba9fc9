"""The progress of a job, as one process writes it and another reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.batch.job.counts import Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import OutputSpec, RunOptions
from inflight.batch.reporting.cost import JobCost
from inflight.batch.reporting.progress import JobProgress, JobState, read_progress, write_progress
from tests.batch.reporting.sample_progress import sample_counts, sample_progress


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    (tmp_path / "answers.job").mkdir()
    return JobDirectory.from_output(OutputSpec(address=str(tmp_path / "answers.jsonl")))


def test_what_is_written_is_read_again(directory: JobDirectory) -> None:
    for progress in (
        sample_progress(),
        sample_progress(JobState.FAILED, message="the table is gone", cost=None, total=None),
    ):
        write_progress(directory, progress)
        assert read_progress(directory) == progress
    assert [path.name for path in directory.path.iterdir()] == ["progress.json"]


@pytest.mark.parametrize("content", [None, "", '{"when": 1, "pid"', '{"state": "sleeping"}'])
def test_where_nothing_can_be_read_nobody_knows(directory: JobDirectory, content: str | None) -> None:
    if content is not None:
        directory.progress.write_text(content)
    assert read_progress(directory) is None


def test_a_moment_stays_as_it_was_while_the_job_counts_on() -> None:
    live = Counts(ok=1, codes={"row_invalid": 1})
    progress = sample_progress(counts=live)
    live.ok, live.codes["row_invalid"] = 2, 5
    assert progress.counts == Counts(ok=1, codes={"row_invalid": 1})


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (sample_progress(), 0.5),
        (sample_progress(retries_left=1000), 0.4),
        (sample_progress(total=None, input_fraction=0.25), 0.25),
        (sample_progress(total=None, input_fraction=None), None),
        (sample_progress(total=0, counts=Counts()), 1.0),
        (sample_progress(JobState.FINISHED, total=None, input_fraction=None), 1.0),
    ],
)
def test_how_much_is_done(progress: JobProgress, share: float | None) -> None:
    assert progress.fraction_done == share


def test_the_bill_is_of_all_lives_and_its_parts_of_what_there_is() -> None:
    cost = JobCost.from_counts(sample_counts(seconds=7200.0), RunOptions(price_per_hour=2.5))
    assert cost is not None
    assert (cost.spent, cost.per_row) == (5.0, 5.0 / 4990)
    assert cost.per_million_tokens == 5.0
    assert cost.per_million_output_tokens == pytest.approx(5 / 0.6)
    nothing = JobCost.from_counts(Counts(seconds=36.0), RunOptions(price_per_hour=100))
    assert nothing is not None
    assert (nothing.spent, nothing.per_row, nothing.per_million_tokens) == (1.0, None, None)
    assert JobCost.from_counts(sample_counts(), RunOptions()) is None
