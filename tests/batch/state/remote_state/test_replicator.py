"""Whole jobs with an output on a storage: what the next machine meets there, however the first one ended."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch import failpoints
from inflight.batch import runner as runner_module
from inflight.batch.errors import BatchError
from inflight.batch.finalize import finalize
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.outputs.interface import OnMessage
from inflight.batch.reporting.progress import JobState, read_progress, write_progress
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.session import JobSession
from inflight.batch.signals import StopEarlyError
from inflight.batch.state.remote_state import remote_state_address
from inflight.batch.storage.object_store import ObjectStore, Readable
from inflight.batch.verify.checker import verify
from tests.batch.scripted_backend import ScriptedBackend, echo
from tests.fixtures.s3_server import S3TestBucket, s3_server


@pytest.fixture(scope="module")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as server:
        yield server


class Machines:
    """Disks of machines that run the same job, one after the other."""

    def __init__(self, place: Path, storage: S3TestBucket) -> None:
        self.place = place
        rows = (json.dumps({"prompt": f"tell {number}"}) + "\n" for number in range(20))
        (place / "in.jsonl").write_text("".join(rows))
        self._job = Job(
            input=InputSpec(address=str(place / "in.jsonl")),
            output=OutputSpec(address=storage.address(f"{place.name}/answers.jsonl")),
            run_options=RunOptions(server_wait_timeout=1.0, checkpoint_seconds=0.05),
        )

    @property
    def carried(self) -> str:
        """Where the state goes."""
        address = remote_state_address(self._job.output)
        assert address is not None
        return address

    def directory(self, name: str) -> JobDirectory:
        return JobDirectory.from_output(self._job.output, self.place / name)

    def live(self, name: str, server: ScriptedBackend | None = None) -> JobResult:
        return JobRunner(self._job, self.directory(name), backends=[server or ScriptedBackend()]).run()


@pytest.fixture
def machines(tmp_path: Path, storage: S3TestBucket) -> Machines:
    return Machines(tmp_path, storage)


async def die(server: ScriptedBackend, prompt: str) -> str | InflightError:
    """An answer, and then no more."""
    if len(server.asked) > 10:
        raise ValueError("a fault of the program")
    return await echo(server, prompt)


def test_a_lost_machine_s_job_is_to_be_tried_again_later(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "inflight.batch.state.remote_state.RemoteState.release_lease", lambda carrier: None
        )  # as kill -9 does
        with pytest.raises(ValueError, match="a fault of the program"):
            machines.live("first", ScriptedBackend(die))
    end = machines.live("second")
    assert (end.state, end.code, end.exit_code) == (JobState.STOPPED, "job_elsewhere", 75)
    assert re.search("can take over in (300|2..) seconds", end.message)
    monkeypatch.setattr("inflight.batch.state.remote_state.LEASE_SECONDS", 0.0)
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
        patch.setattr(runner_module, "finalize", ending)
        assert machines.live("first").exit_code == 75
    nobody = ScriptedBackend()
    assert machines.live("second", nobody).state is JobState.FINISHED
    assert nobody.asked == []  # every row was known there


@pytest.mark.parametrize("point", ["output.upload", "output.uploaded"])
def test_an_output_whose_upload_was_broken_off_is_made_again(
    machines: Machines, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, suppress(OSError):

        def ending(job: JobSession, on_message: OnMessage) -> list[str]:
            patch.setattr(failpoints, "_REACHED", {})
            patch.setattr(failpoints, "_ARMED", {point: (1, "full")})
            return finalize(job, on_message)

        patch.setattr(runner_module, "finalize", ending)
        assert machines.live("first").exit_code == 75
    nobody = ScriptedBackend()
    assert machines.live("first", nobody).exit_code == 0
    assert nobody.asked == []
    assert verify(machines.directory("first")).complete


def test_a_storage_that_is_away_at_the_end_is_asked_once(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time may take minutes, and there is nothing left that could be lost."""
    times = []

    def away(objects: ObjectStore, name: str) -> None:
        times.append(name)
        raise BatchError("the storage does not answer", "storage_unreachable")

    def ending(*values: object) -> list[str]:
        monkeypatch.setattr(ObjectStore, "read", away)
        return []

    monkeypatch.setattr(runner_module, "finalize", ending)
    assert machines.live("first").state is JobState.FINISHED
    assert times == ["manifest.json"]


def test_a_finished_job_is_nobody_s(machines: Machines) -> None:
    """Looked at on another machine it tells its status there, and keeps no third one away."""
    assert machines.live("first").exit_code == 0
    progress_before = read_progress(machines.directory("first"))
    assert progress_before is not None  # killed before its end was reported, it would say that it runs
    write_progress(machines.directory("first"), progress_before.model_copy(update={"state": JobState.RUNNING}))
    for name in ("first", "second", "third"):
        assert machines.live(name).exit_code == 0
        progress = read_progress(machines.directory(name))
        assert progress is not None
        assert (progress.state, progress.counts.ok) == (JobState.FINISHED, 20)


@pytest.mark.parametrize("long", ["a sending", "the output", "a pause", "bringing the state"])
def test_a_machine_keeps_its_job_however_long_a_step_takes(
    machines: Machines, long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these may take longer than a silent machine is waited for."""
    monkeypatch.setattr("inflight.batch.state.remote_state.RENEW_SECONDS", 0.05)
    objects, seen = ObjectStore(machines.carried), list[bool]()
    send, blocks = ObjectStore.put, ObjectStore.read_blocks

    def renewed() -> bool:
        """Whether the machine says twice that it is at work, while this waits."""
        times: set[float] = set()
        end = time.monotonic() + 20
        while len(times) < 3 and time.monotonic() < end:
            manifest = objects.read("manifest.json")
            times |= {json.loads(manifest[0])["time"]} if manifest else set()
        return len(times) == 3

    def slow_send(store: ObjectStore, name: str, source: Readable) -> None:
        if objects.read("manifest.json") is not None and not seen:
            seen.append(renewed())
        send(store, name, source)

    def slow_blocks(store: ObjectStore, name: str) -> Iterator[bytes]:
        if not seen:
            seen.append(renewed())
        return blocks(store, name)

    def slow_finish(job: JobSession, on_message: OnMessage) -> list[str]:
        seen.append(renewed())
        return finalize(job, on_message)

    async def slow_answer(server: ScriptedBackend, prompt: str) -> str | InflightError:
        if not seen:
            seen.append(False)
            seen[0] = await asyncio.to_thread(renewed)
        return prompt

    if long == "a sending":
        monkeypatch.setattr(ObjectStore, "put", slow_send)
    elif long == "the output":
        monkeypatch.setattr(runner_module, "finalize", slow_finish)
    elif long == "bringing the state":
        with pytest.raises(ValueError, match="a fault of the program"):
            machines.live("zeroth", ScriptedBackend(die))
        monkeypatch.setattr(ObjectStore, "read_blocks", slow_blocks)
    end = machines.live("first", ScriptedBackend(slow_answer if long == "a pause" else echo))
    assert (end.exit_code, end.message, seen) == (0, "", [True])
    assert machines.live("second", ScriptedBackend(die)).exit_code == 0  # no machine has it any more


def test_a_machine_that_lost_its_job_is_told_between_two_sendings(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.batch.state.remote_state.RENEW_SECONDS", 0.05)
    monkeypatch.setattr("inflight.batch.state.remote_state.MIN_UPLOAD_INTERVAL", 600.0)
    waited: list[str] = []

    async def taken_over(server: ScriptedBackend, prompt: str) -> str | InflightError:
        if len(server.asked) == 1:
            objects = ObjectStore(machines.carried)
            manifest = objects.read("manifest.json")
            assert manifest is not None
            other = json.loads(manifest[0]) | {"owner": "another", "time": time.time()}
            while not objects.replace_if_unchanged("manifest.json", json.dumps(other).encode(), manifest[1]):
                manifest = objects.read("manifest.json")
                assert manifest is not None
        await asyncio.sleep(30)
        waited.append(prompt)
        return prompt

    end = machines.live("first", ScriptedBackend(taken_over))
    assert (end.code, end.exit_code, waited) == ("job_elsewhere", 75, [])
