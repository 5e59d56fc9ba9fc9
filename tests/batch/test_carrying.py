"""Whole jobs with an output on a storage: what the next machine meets there, however the first one ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch import runner as runner_module
from inflight.batch.errors import BatchError
from inflight.batch.job import InputSpec, Job, OutputSpec, Running
from inflight.batch.job_directory import JobDirectory
from inflight.batch.runner import End, Runner
from inflight.batch.seen.progress import State, read_progress, write_progress
from inflight.batch.signals import StopEarlyError
from inflight.batch.stored_objects import StoredObjects
from tests.batch.flow.scripted import Scripted, echo
from tests.deploy.storage import Storage, storage_server


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    with storage_server() as one:
        yield one


class Machines:
    """Disks of machines that run the same job, one after the other."""

    def __init__(self, place: Path, storage: Storage) -> None:
        self.place = place
        rows = (json.dumps({"prompt": f"tell {number}"}) + "\n" for number in range(20))
        (place / "in.jsonl").write_text("".join(rows))
        self._job = Job(
            input=InputSpec(address=str(place / "in.jsonl")),
            output=OutputSpec(address=storage.address(f"{place.name}/answers.jsonl")),
            running=Running(patience=1.0, checkpoint_seconds=0.05),
        )

    def directory(self, name: str) -> JobDirectory:
        return JobDirectory.of(self._job.output, self.place / name)

    def live(self, name: str, server: Scripted | None = None) -> End:
        return Runner(self._job, self.directory(name), backends=[server or Scripted()]).run()


@pytest.fixture
def machines(tmp_path: Path, storage: Storage) -> Machines:
    return Machines(tmp_path, storage)


async def die(server: Scripted, prompt: str) -> str | InflightError:
    """An answer, and then no more."""
    if len(server.asked) > 10:
        raise ValueError("a fault of the program")
    return await echo(server, prompt)


def test_a_lost_machine_s_job_is_to_be_tried_again_later(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inflight.batch.carry.Carrier.release", lambda carrier: None)  # as kill -9 does
        with pytest.raises(ValueError, match="a fault of the program"):
            machines.live("first", Scripted(die))
    end = machines.live("second")
    assert (end.state, end.code, end.exit_code) == (State.STOPPED, "job_elsewhere", 75)
    assert "goes on from there in 300 seconds" in end.sentence or "in 29" in end.sentence
    monkeypatch.setattr("inflight.batch.carry.LEASE_SECONDS", 0.0)
    assert machines.live("second").counts.ok == 20


def early(*values: object) -> list[str]:
    raise StopEarlyError


def failing(*values: object) -> list[str]:
    raise BatchError("the output can't be made", "output_failed")


@pytest.mark.parametrize("ending", [early, failing])
def test_whatever_ended_a_job_the_next_machine_need_not_wait(
    machines: Machines, ending: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runner_module, "finish", ending)
        assert machines.live("first").exit_code == 75
    nobody = Scripted()
    assert machines.live("second", nobody).state is State.FINISHED
    assert nobody.asked == []  # every row was known there


def test_a_storage_that_is_away_at_the_end_is_asked_once(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time may take minutes, and there is nothing left that could be lost."""
    times = []

    def away(objects: StoredObjects, name: str) -> None:
        times.append(name)
        raise BatchError("the storage does not answer", "storage_unreachable")

    def ending(*values: object) -> list[str]:
        monkeypatch.setattr(StoredObjects, "read", away)
        return []

    monkeypatch.setattr(runner_module, "finish", ending)
    assert machines.live("first").state is State.FINISHED
    assert times == ["manifest.json"]


def test_a_finished_job_is_nobody_s(machines: Machines) -> None:
    """Looked at on another machine it tells how it stands there, and keeps no third one away."""
    assert machines.live("first").exit_code == 0
    told = read_progress(machines.directory("first"))
    assert told is not None  # killed before the end of it was told, it would say that it runs
    write_progress(machines.directory("first"), told.model_copy(update={"state": State.RUNNING}))
    for name in ("first", "second", "third"):
        assert machines.live(name).exit_code == 0
        progress = read_progress(machines.directory(name))
        assert progress is not None
        assert (progress.state, progress.counts.ok) == (State.FINISHED, 20)
