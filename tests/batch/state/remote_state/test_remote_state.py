"""A job whose machine was lost: what another one finds, and that only one of them runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from s3fs import S3FileSystem

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import OutputSpec
from inflight.batch.state.remote_state import remote_state_address
from inflight.batch.storage.object_store import Readable
from tests.batch.state.remote_state.machine import JobMachine
from tests.fixtures.errors import raises
from tests.fixtures.s3_server import S3TestBucket


@pytest.mark.usefixtures("no_lease")
def test_another_machine_goes_on_where_the_first_was_seen_last(first: JobMachine, second: JobMachine) -> None:
    assert first.remote_state.fetch() is False
    for count in (7, 12, 1):
        first.answer(count)
        first.send()
    first.answer(30)  # rows that were not uploaded are sent again
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == 20
    assert second.recovered()[1] == first.directory.result_file(RowStatus.OK).read_bytes().splitlines()[:16]
    assert second.directory.job() == first.directory.job()
    second.open()
    second.answer(5)
    second.send()
    with raises(BatchError, "job_elsewhere"):
        first.send()
    second.close()
    # The first machine comes back, with a disk of an earlier time.
    first.close()
    again = JobMachine(first.directory.path.parent, first.remote_state._objects.address)
    assert again.remote_state.fetch() is True
    assert again.recovered()[0] == 25


def test_a_machine_that_was_heard_of_lately_keeps_its_job(first: JobMachine, second: JobMachine) -> None:
    first.answer(5)
    first.send()
    with raises(BatchError, "job_elsewhere"):
        second.remote_state.fetch()
    assert not second.directory.state.exists()
    first.answer(5)
    first.send(last=True)
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == 10
    second.remote_state.release_lease()
    first.close()
    assert first.remote_state.fetch() is True


@pytest.mark.parametrize("address", ["disk"], indirect=True)
def test_a_machine_that_starts_again_has_the_latest_itself(first: JobMachine, address: str) -> None:
    first.answer(5)
    first.send()
    first.answer(5)
    first.close()
    again = JobMachine(first.directory.path.parent, address)
    assert again.remote_state.fetch() is False
    assert again.recovered()[0] == 10


def test_only_new_lines_travel_and_nothing_old_stays(storage: S3TestBucket, tmp_path: Path) -> None:
    machine = JobMachine(tmp_path, storage.address("parts.job"))
    machine.begin()
    for _ in range(3):
        machine.answer(5)
        machine.send()
    names = storage.names("parts.job")
    parts = [f"{kind}-00000{number}" for kind in ("dead", "ok") for number in range(3)]
    assert sorted(name.rpartition("-")[0] for name in names) == ["", *parts, "state"]
    machine.close()
    machine = JobMachine(tmp_path, storage.address("parts.job"))
    machine.open()
    machine.send()
    assert {name for name in storage.names("parts.job") if "state" not in name} == {
        name for name in names if "state" not in name
    }
    machine.close()


@pytest.mark.usefixtures("no_lease")
@pytest.mark.parametrize("address", ["disk"], indirect=True)
def test_lines_that_were_made_anew_replace_those_that_were_carried(first: JobMachine, second: JobMachine) -> None:
    """As rows that are asked once more do to the files."""
    first.answer(10)
    first.send()
    path = first.directory.result_file(RowStatus.OK)
    new = path.with_name("new")
    new.write_bytes(path.read_bytes().replace(b"Answer", b"Retort"))
    new.replace(path)
    first.send()
    second.remote_state.fetch()
    assert second.recovered()[1][0] == b'{"id":0,"text":"Retort 0"}'


def test_two_that_begin_at_once_are_told_apart(
    storage: S3TestBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked, and found no other; the storage lets one of them write."""
    machines = [JobMachine(tmp_path / name, storage.address("at-once.job")) for name in ("first", "second")]
    for machine in machines:
        machine.begin()
        machine.answer(3)
    monkeypatch.setattr(machines[1].remote_state._objects, "read", lambda name: None)
    machines[0].send()
    with raises(BatchError, "job_elsewhere"):
        machines[1].send()
    for machine in machines:
        machine.close()


def test_only_jobs_with_an_output_on_a_storage_are_carried() -> None:
    assert remote_state_address(OutputSpec(address="s3://bucket/day/answers.jsonl.gz")) == "s3://bucket/day/answers.job"
    assert remote_state_address(OutputSpec(address="answers.csv")) is None
    assert remote_state_address(OutputSpec(address="postgresql://db/shop", table="answers")) is None


@pytest.mark.parametrize("address", ["disk"], indirect=True)
def test_sending_is_due_once_a_minute(first: JobMachine) -> None:
    assert first.remote_state.due
    first.answer(1)
    first.send()
    assert not first.remote_state.due


def test_a_storage_that_is_away_is_not_asked_with_each_checkpoint(
    storage: S3TestBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = JobMachine(tmp_path, storage.address("away.job"))
    machine.begin()
    monkeypatch.setattr(machine.remote_state._objects, "read", _away)
    with pytest.raises(BatchError):
        machine.send()
    assert not machine.remote_state.due
    machine.close()


def _away(name: str) -> None:
    raise BatchError("the storage does not answer", "storage_unreachable")


def test_a_request_that_was_sent_again_is_nobody_else_s(
    storage: S3TestBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the answer to the first one was lost, the storage refuses the second: the manifest is another by then."""
    put, times = S3FileSystem._call_s3, []

    async def twice(self: S3FileSystem, method: str, *values: object, **options: object) -> object:
        if method == "put_object" and options.keys() & {"IfMatch", "IfNoneMatch"}:
            times.append(await put(self, method, *values, **options))
        return await put(self, method, *values, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", twice)
    machine = JobMachine(tmp_path / "first", storage.address("twice.job"))
    machine.begin()
    for _ in range(2):
        machine.answer(5)
        machine.send()
    machine.send(last=True)
    machine.close()
    assert len(times) == 3
    second = JobMachine(tmp_path / "second", storage.address("twice.job"))
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == 10


@pytest.mark.usefixtures("no_lease")
@pytest.mark.parametrize("address", ["disk"], indirect=True)
def test_what_is_committed_while_a_state_is_sent_goes_with_the_next(
    first: JobMachine, second: JobMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = first.remote_state._objects.put

    def slowly(name: str, source: Readable) -> None:
        first.answer(5)
        send(name, source)

    first.answer(10)
    monkeypatch.setattr(first.remote_state._objects, "put", slowly)
    first.send()
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == 10


def test_ids_that_were_claimed_since_the_checkpoint_stay_claimed(tmp_path: Path) -> None:
    """Here and there: a later row with the same id must be distinguished."""
    machine = JobMachine(tmp_path / "first", str(tmp_path / "carried"))
    machine.begin()
    assert machine.ledger is not None
    machine.ledger.claim_ids([("mine", 0)])
    machine.send(last=True)
    assert machine.ledger.claim_ids([("mine", 7)]) == {7}
    machine.close()
    second = JobMachine(tmp_path / "second", str(tmp_path / "carried"))
    second.remote_state.fetch()
    second.open()
    assert second.ledger is not None
    assert second.ledger.claim_ids([("mine", 8)]) == {8}
    second.close()
