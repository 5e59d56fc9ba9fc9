"""A worker of Ray as it begins a part: which model it may ask, and when it gives up."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.batch import failpoints
from inflight.batch.dispatch.retrieval import Encoders
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.job.spec import EncodeSpec, InputPart, InputSpec, Job, OutputSpec, RefineSpec, RetrievalSpec
from inflight.batch.ray.parts import PartPlan, StartPoint, split_input
from inflight.batch.ray.runner import RayRunner
from inflight.batch.ray.shared_facts import set_once
from inflight.batch.ray.worker import MAX_ATTEMPTS, PartReport, PartRunner, PartTask, PartWorker, _begin
from inflight.batch.reporting.progress import JobState
from inflight.batch.runner import JobResult
from inflight.batch.session import open_session
from inflight.batch.sources.factory import open_source
from inflight.batch.state.ledger import Ledger
from tests.batch.outputs.shop import Shop
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until


@pytest.fixture
def whole(tmp_path: Path) -> Job:
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"tell {number}"}) + "\n" for number in range(100)))
    return Job(input=InputSpec(address=str(rows)), output=OutputSpec(address=str(tmp_path / "whole.jsonl")))


def test_all_parts_ask_the_same_build(whole: Job) -> None:
    """The first one to ask binds the others, before they have sent a row."""
    places = PartPlan(JobDirectory.from_output(whole.output))
    plan = split_input(open_source(whole.input), StartPoint(0, None, 0), None, workers=1)
    places.write(plan)
    jobs = [places.job(whole, index, part) for index, part in enumerate(plan)]
    right, wrong, both = ScriptedBackend(build="one"), ScriptedBackend(build="two"), ScriptedBackend(build="one")

    def live(index: int, *servers: ScriptedBackend) -> JobResult:
        return PartRunner(jobs[index], JobDirectory.from_output(jobs[index].output), places.shared, servers).run()

    assert live(0, right).state is JobState.FINISHED
    refused = live(1, wrong)
    assert (refused.state, refused.code) == (JobState.FAILED, "job_mismatch")
    assert live(1, wrong, both).state is JobState.FINISHED
    assert wrong.asked == []
    assert both.asked


def test_all_parts_ask_the_same_build_to_refine(whole: Job) -> None:
    running = whole.run_options.model_copy(update={"refine_with": ("big:8001",)})
    whole = whole.model_copy(update={"refine": RefineSpec(when="regex:."), "run_options": running})
    places = PartPlan(JobDirectory.from_output(whole.output))
    plan = split_input(open_source(whole.input), StartPoint(0, None, 0), None, workers=1)
    places.write(plan)
    ends = []
    for index, build in enumerate(("one", "two")):
        job = places.job(whole, index, plan[index])
        runner = PartRunner(job, JobDirectory.from_output(job.output), places.shared, [ScriptedBackend()])
        runner._refiners = [ScriptedBackend(build=build)]
        ends.append(runner.run().code)
    assert ends == ["", "job_mismatch"]


def test_all_parts_ask_the_same_encoder_for_passages(whole: Job, database: Shop) -> None:
    database.do(
        "CREATE EXTENSION vector",
        f"CREATE TABLE docs AS SELECT 1 AS id, 'tea' AS text, '{[1] * 8}'::vector AS embedding",
    )
    job = whole.model_copy(
        update={
            "input": InputSpec(address=whole.input.address, template="{{ passages }} {{ prompt }}"),
            "retrieval": RetrievalSpec(address=database.address, table="docs", query="prompt", rerank=True),
        }
    )
    places = PartPlan(JobDirectory.from_output(job.output))
    plan = [InputPart(first=0, rows=50), InputPart(first=50, rows=50)]
    places.write(plan)

    def live(index: int, embed: str, rerank: str) -> JobResult:
        encoders = Encoders((ScriptedBackend(build=embed),), (ScriptedBackend(build=rerank),))
        part = places.job(job, index, plan[index])
        directory = JobDirectory.from_output(part.output)
        return PartRunner(part, directory, places.shared, [ScriptedBackend()], encoders).run()

    assert live(0, "one", "two").state is JobState.FINISHED
    assert [live(1, *builds).code for builds in (("other", "two"), ("one", "other"))] == ["job_mismatch"] * 2
    assert live(1, "one", "two").state is JobState.FINISHED


@pytest.mark.parametrize("size", [8, 5])
def test_parts_send_no_row_until_the_head_knows_that_their_vectors_fit(size: int, whole: Job, database: Shop) -> None:
    database.do("CREATE EXTENSION vector", f"CREATE TABLE docs (id BIGINT PRIMARY KEY, embedding vector({size}))")
    job = Job(
        input=whole.input,
        output=OutputSpec(address=database.address, table="docs"),
        encode=EncodeSpec(task="embed"),
    )
    directory = JobDirectory.from_output(job.output, Path(whole.output.address).with_suffix(".job"))
    directory.path.mkdir()
    places = PartPlan(directory)
    places.write([InputPart(first=0, rows=40)])
    head = RayRunner(job, directory)
    part = places.job(job, 0, InputPart(first=0, rows=40))
    server = ScriptedBackend()
    runner = PartRunner(part, JobDirectory.from_output(part.output), places.shared, [server])
    with open_session(job, directory) as session, ThreadPoolExecutor() as pool:
        ended = pool.submit(runner.run)
        wait_until(places.shared.dimensions.exists)
        assert server.asked == ["Hello"]
        head._check_dimensions(session)
        end = ended.result()
    if size == 8:
        assert (end.state, end.counts.ok) == (JobState.FINISHED, 40)
    else:
        assert (end.state, server.asked) == (JobState.STOPPED, ["Hello"])
        with raises(BatchError, "output_invalid", naming="vector(5)"):
            raise head._failure or AssertionError


@pytest.mark.parametrize(("point", "expected"), [("agree", "second"), ("agreed", "first")])
def test_what_was_agreed_on_is_one_thing_whole(
    point: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the first to say it fails of it, as where the disk is full."""
    with monkeypatch.context() as patch:
        patch.setitem(failpoints._ARMED, point, (1, "full"))
        patch.setattr(failpoints, "_REACHED", {})
        with pytest.raises(BatchError) as caught:
            set_once(tmp_path / "build", "first")
    assert caught.value.code == "disk_full"
    assert [set_once(tmp_path / "build", value) for value in ("second", "third")] == [expected, expected]


def test_a_part_that_workers_only_die_of_is_given_up(whole: Job) -> None:
    """Those that died after some of its rows were done are not counted, nor those of an earlier head."""
    places = PartPlan(JobDirectory.from_output(whole.output))
    part = places.job(whole, 0, InputPart(first=0, rows=40))
    directory = JobDirectory.from_output(part.output)
    task = PartTask(0, part, 1, "found", places.shared, "first")
    for _ in range(MAX_ATTEMPTS):
        _begin(directory, task)
    with closing(Ledger(directory)) as ledger:
        ledger.add(RowResult(0, 1, "0", RowStatus.OK, b"{}"))
        ledger.checkpoint()
    for life in ("first", "second"):
        for _ in range(MAX_ATTEMPTS):
            _begin(directory, replace(task, run_id=life))
    with raises(BatchError, "job_failed", naming=(str(MAX_ATTEMPTS), "00000.job")):
        _begin(directory, replace(task, run_id="second"))


def test_whatever_a_worker_fails_of_the_head_is_told(whole: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a fault of the program, in the thread that runs the part."""

    def faulty(runner: PartRunner) -> JobResult:
        raise ValueError("a fault")

    monkeypatch.setattr(PartRunner, "run", faulty)
    places = PartPlan(JobDirectory.from_output(whole.output))
    task = PartTask(0, places.job(whole, 0, InputPart(first=0, rows=40)), 1, "found", places.shared, "one")
    report = PartReport(**PartWorker()({"task": pickle.dumps(task)}))
    assert (report.state, report.code) == (JobState.FAILED, "job_failed")
    assert "00000.job failed: ValueError('a fault')" in report.message
