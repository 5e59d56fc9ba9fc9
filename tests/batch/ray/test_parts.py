"""An input cut into parts, and their lines merged, against one job over the whole of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch import failpoints
from inflight.batch.finalize import finalize
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import EncodeSpec, InputPart, InputSpec, Job, OutputSpec
from inflight.batch.ray import merge as merge_module
from inflight.batch.ray import parts as parts_module
from inflight.batch.ray.merge import PartMerger
from inflight.batch.ray.parts import PartPlan, StartPoint, split_input
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.session import open_session
from inflight.batch.sources.factory import open_source
from inflight.batch.verify.checker import verify
from tests.batch.scripted_backend import ScriptedBackend

BEGIN = StartPoint(0, None, 0)


def write(path: Path, rows: int) -> Path:
    """Rows with ids, of which some are torn, too long, or there before."""
    lines = []
    for number in range(rows):
        row = json.dumps({"id": f"row-{number % 90}", "prompt": "refuse" if number % 31 == 5 else f"tell {number}"})
        lines.append(row[:9] if number % 41 == 7 else row)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


async def answer(server: ScriptedBackend, prompt: str) -> str | InflightError:
    if prompt == "refuse":
        return InflightError("it is refused", "invalid_parameter")
    return "" if prompt.endswith("3") else prompt.upper()


@pytest.mark.parametrize("rows", [1, 31, 33, 64, 1000])
@pytest.mark.parametrize("marks", [4, 4096])
def test_parts_are_the_whole_input_once(rows: int, marks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "_MAX_START_POINTS", marks)
    source = open_source(InputSpec(address=str(write(tmp_path / "in.jsonl", rows))))
    parts = split_input(source, BEGIN, None, workers=2)
    numbers = [number for part in parts for number in range(part.first, part.first + (part.rows or 0))]
    assert numbers == list(range(rows))
    read = list(source.read())
    for part in parts:
        assert next(iter(source.read(part.after, part.line))) == read[part.first]
    if rows >= 256 and marks > 4:
        assert len(parts) == 8
        assert max(part.rows or 0 for part in parts) - min(part.rows or 0 for part in parts) <= 1


def test_parts_are_those_of_the_first_rows_where_there_is_a_limit(tmp_path: Path) -> None:
    source = open_source(InputSpec(address=str(write(tmp_path / "in.jsonl", 300))))
    assert sum(part.rows or 0 for part in split_input(source, BEGIN, 100, workers=2)) == 100


def test_merged_parts_are_the_files_of_one_job(tmp_path: Path) -> None:
    """Also where ids come twice, in a part and across parts, and where a merge was broken off."""
    job, whole_end, apart = _whole_and_apart(tmp_path, 200)
    assert whole_end.counts.ok > 50
    assert {"row_duplicate", "row_invalid", "invalid_parameter"} <= whole_end.counts.codes.keys()
    directory = JobDirectory.from_output(apart.output)
    plan, directories = _parts_done(apart)
    assert len(plan) == 7
    assert [part.model_dump(mode="json") for part in PartPlan(directory).read() or ()] == [
        part.model_dump(mode="json") for part in plan
    ]

    for last in (2, 7):  # a merge that sees the first parts alone, and then one that sees them all
        with open_session(apart, directory) as whole:
            PartMerger(whole, plan[:last], directories[:last], whole.ledger.checkpoint).run()
            counts = whole.ledger.counts
            whole.ledger.remember("finished", True)
    assert counts.codes == whole_end.counts.codes
    assert counts.input_tokens >= whole_end.counts.input_tokens
    assert counts.output_tokens >= whole_end.counts.output_tokens
    assert counts.empty >= whole_end.counts.empty > 0
    _check_same_files(directory, job)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("point", ["merge", "merged"])
def test_a_merge_that_was_broken_off_is_finished_without_ray(
    point: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was: before a part's end the input is read again from its beginning, and rows that are done pass."""
    monkeypatch.setattr(merge_module, "_ROWS", 12)
    job, whole_end, apart = _whole_and_apart(tmp_path, 100)
    directory = JobDirectory.from_output(apart.output)
    plan, directories = _parts_done(apart)
    with open_session(apart, directory) as whole, monkeypatch.context() as patch:
        patch.setattr(failpoints, "_REACHED", {})
        patch.setattr(failpoints, "_ARMED", {point: (blocks, "full")})
        with pytest.raises(OSError, match="No space left"):
            PartMerger(whole, plan, directories, whole.ledger.checkpoint).run()
    end = JobRunner(apart, directory, backends=[ScriptedBackend(answer)]).run()
    assert end.counts.codes == whole_end.counts.codes
    assert end.counts.output_tokens >= whole_end.counts.output_tokens  # paid for
    _check_same_files(directory, job)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_request_with_two_texts_is_refused_in_a_part_as_in_a_whole_job(suffix: str, tmp_path: Path) -> None:
    def request(number: int) -> dict[str, object]:
        texts = ["a", "b"] if number == 40 else f"text {number}"
        body = {"model": "m", "input": texts}
        return {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}

    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps(request(number)) + "\n" for number in range(80)))
    job = Job(
        input=InputSpec(address=str(rows)),
        output=OutputSpec(address=str(tmp_path / f"vectors.{suffix}")),
        encode=EncodeSpec(task="embed"),
    )
    plan, directories = _parts_done(job)
    with open_session(job, JobDirectory.from_output(job.output)) as whole:
        PartMerger(whole, plan, directories, whole.ledger.checkpoint).run()
        finalize(whole)
        assert (whole.ledger.counts.ok, whole.ledger.counts.codes) == (79, {"unsupported_input": 1})
    assert verify(JobDirectory.from_output(job.output)).complete


def _whole_and_apart(folder: Path, rows: int) -> tuple[Job, JobResult, Job]:
    """A job that was run as one, how it ended, and the same job to be run in parts."""
    source = InputSpec(address=str(write(folder / "in.jsonl", rows)), id="id")
    job, apart = (Job(input=source, output=OutputSpec(address=f"{folder}/{name}.jsonl")) for name in ("whole", "apart"))
    runner = JobRunner(job, JobDirectory.from_output(job.output), backends=[ScriptedBackend(answer)])
    return job, runner.run(), apart


def _check_same_files(directory: JobDirectory, job: Job) -> None:
    for kind in RowStatus:
        mine, others = (
            each.result_file(kind).read_bytes() for each in (directory, JobDirectory.from_output(job.output))
        )
        assert sorted(mine.splitlines()) == sorted(others.splitlines()), kind
        assert kind is RowStatus.DEAD or mine == others
    assert verify(directory).complete


def _parts_done(job: Job) -> tuple[tuple[InputPart, ...], list[JobDirectory]]:
    """A job that was cut, whose parts are all done, and not merged."""
    directory = JobDirectory.from_output(job.output)
    places = PartPlan(directory)
    directory.path.mkdir()
    with open_session(job, directory) as whole:
        plan = split_input(whole.source, BEGIN, None, workers=2)
        places.write(plan)
        whole.ledger.remember("counts_before_parts", whole.ledger.counts.as_dict())
    return plan, [_live(places.job(job, index, part)) for index, part in enumerate(plan)]


def _live(job: Job) -> JobDirectory:
    directory = JobDirectory.from_output(job.output)
    JobRunner(job, directory, backends=[ScriptedBackend(answer)]).run()
    return directory


def test_a_part_knows_its_paths_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job(input=InputSpec(address="in.jsonl", limit=9), output=OutputSpec(address="out/answers.csv"))
    part = PartPlan(JobDirectory.from_output(job.output)).job(job, 3, InputPart(first=4, rows=2, after=17, line=4))
    assert part.input.address == str(tmp_path / "in.jsonl")
    assert part.input.limit is None
    assert part.output.address == str(tmp_path / "out/answers.job/parts/00003.jsonl")
    assert part.run_options.runner == "local"
