"""What a job has counted is on the disk before: a record of its writes shows what a power cut would leave."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.job.spec import Job, OutputSpec
from inflight.batch.ray.parts import PartPlan
from inflight.batch.ray.shared_facts import set_once
from inflight.batch.runner import JobRunner
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.retry_ledger import RetryLedger, open_ledger, select_failed_rows
from tests.batch.crash.disk import Disk
from tests.batch.sample_jobs import created, job_of, picky
from tests.batch.scripted_backend import ScriptedBackend, echo

PROMPTS = ["tea long" if number % 9 == 4 else f"tea {number}" for number in range(60)]


def job_to(folder: Path, output: str, prompts: Sequence[str] = PROMPTS, **more: Any) -> Job:
    job = job_of(folder, prompts, checkpoint_seconds=0.02)
    return job.model_copy(update={"output": OutputSpec(address=output, **more)})


@contextmanager
def stopped_at(point: str, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_REACHED", {})
        patch.setattr(failpoints, "_ARMED", {point: (times, "full")})
        with pytest.raises(BatchError) as caught:
            yield
    assert caught.value.code == "disk_full"


@pytest.mark.parametrize(
    ("output", "dead"), [("new/folder/answers.jsonl", ["{"]), ("new/folder/answers.csv", ["{"]), ("answers.csv", [])]
)
def test_a_job_counts_what_is_on_the_disk(
    tmp_path: Path, output: str, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose rows are asked once more, and whose folders are new."""
    job = job_to(tmp_path, str(tmp_path / output), [*dead, *PROMPTS])
    disk = Disk(tmp_path, monkeypatch)
    disk.settle()
    directory = JobDirectory.from_output(job.output)
    assert JobRunner(job, directory, backends=[ScriptedBackend(picky)]).run().exit_code == 3
    disk.check_all("the end of the job")
    assert disk.faults == []
    assert JobRunner(job, directory, backends=[ScriptedBackend(echo)]).run(retry_codes=()).exit_code == (
        3 if dead else 0
    )
    disk.check_all("the end of the retry")
    assert disk.faults == []
    assert disk.commits > 10


def test_a_job_counts_as_delivered_what_its_table_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = tmp_path / "shop.db"
    job = job_to(tmp_path, f"sqlite:///{shop}", table="answers")
    directory = JobDirectory.from_output(job.output, tmp_path / "shop.job")

    def undelivered(values: dict[str, Any]) -> str:
        if not values.get("delivered"):
            return ""
        delivered = directory.result_file(RowStatus.OK).read_bytes()[: values["delivered"]].count(b"\n")
        with closing(sqlite3.connect(shop)) as table:
            made = table.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone()
            (rows,) = table.execute("SELECT count(*) FROM answers").fetchone() if made else (0,)
        return "" if rows >= delivered else f"{delivered} rows count as delivered, and the table has {rows}"

    disk = Disk(tmp_path, monkeypatch, also=undelivered)
    disk.settle()
    assert JobRunner(job, directory, backends=[ScriptedBackend(picky)]).run().exit_code == 3
    assert disk.faults == []


def test_names_that_a_dead_process_gave_are_made_to_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have died between a name and the directory's sync: of a new file, and of a merged one."""
    directory = created(job_of(tmp_path, PROMPTS))
    disk = Disk(tmp_path, monkeypatch)
    disk.settle()
    for kind in (RowStatus.OK, RowStatus.ERROR):
        directory.result_file(kind).touch()
    with closing(Ledger(directory)) as ledger:
        for number in range(20):
            kind = RowStatus.ERROR if number % 3 else RowStatus.OK
            ledger.add(RowResult(number, number + 1, str(number), kind, b"{}", "deadline_exceeded"))
        ledger.checkpoint()
        select_failed_rows(ledger, ())
    retrial = open_ledger(directory, 0)
    assert isinstance(retrial, RetryLedger)
    for number in range(20):
        kind = RowStatus.ERROR if number % 3 == 1 else RowStatus.OK
        retrial.add(RowResult(number, number + 1, str(number), kind, b"[]", "deadline_exceeded"))
    retrial.checkpoint()
    with stopped_at("merge.renamed", monkeypatch, times=2):
        retrial.merge()
    retrial.close()
    with closing(open_ledger(directory, 0)) as ledger:
        ledger.recover()
    assert disk.faults == []


def test_what_the_parts_of_a_job_agree_on_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever part has written it, and however soon it is killed afterwards."""
    (tmp_path / "whole.job").mkdir()
    disk = Disk(tmp_path, monkeypatch)
    disk.settle()
    parts = PartPlan(JobDirectory(tmp_path / "whole.job"))
    parts.write(())
    with stopped_at("agreed", monkeypatch):
        set_once(parts.path / "build", "one")
    assert set_once(parts.path / "build", "two") == "one"
    assert disk.lasting(parts.path / "build")
    assert disk.lasting(parts.plan_file)
    assert disk.faults == []
