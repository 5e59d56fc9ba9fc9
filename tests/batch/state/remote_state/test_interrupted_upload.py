"""A state that is being uploaded when its machine dies: there is always a whole one, or an error reports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from tests.batch.crash.disk import Disk
from tests.batch.state.remote_state.machine import JobMachine
from tests.fixtures.errors import raises
from tests.fixtures.s3_server import S3TestBucket

POINTS = [
    "remote_state.part",
    "remote_state.part_sent",
    "remote_state.manifest",
    "remote_state.manifest_written",
    "remote_state.remove",
]
PLACES = ["disk", pytest.param("s3", marks=pytest.mark.slow)]
"""The steps are the same everywhere, and take longer on S3."""


@pytest.mark.usefixtures("no_lease")
@pytest.mark.parametrize("address", PLACES, indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_wherever_sending_ends_there_is_a_whole_state(
    first: JobMachine, second: JobMachine, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first.answer(10)
    first.send()
    first.answer(10)
    monkeypatch.setitem(failpoints._ARMED, point, (1, "full"))
    with raises(BatchError, "disk_full"):
        first.send()
    monkeypatch.delitem(failpoints._ARMED, point)
    monkeypatch.setattr(failpoints, "_REACHED", {})
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == (20 if point in ("remote_state.manifest_written", "remote_state.remove") else 10)


@pytest.mark.usefixtures("no_lease")
@pytest.mark.parametrize("address", PLACES, indirect=True)
@pytest.mark.parametrize(
    "point", ["remote_state.forgotten", "remote_state.manifest_written", "remote_state.fetched", "remote_state.placed"]
)
def test_wherever_fetching_ends_the_next_one_brings_all(
    first: JobMachine, tmp_path: Path, address: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first.answer(10)
    first.send()
    monkeypatch.setitem(failpoints._ARMED, point, (1, "full"))
    with pytest.raises(BatchError):
        JobMachine(tmp_path / "second", address).remote_state.fetch()
    monkeypatch.delitem(failpoints._ARMED, point)
    monkeypatch.setattr(failpoints, "_REACHED", {})
    second = JobMachine(tmp_path / "second", address)
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == 10


def test_killed_between_the_parts_and_the_manifest(storage: S3TestBucket, tmp_path: Path) -> None:
    address = storage.address("killed.job")
    machine = JobMachine(tmp_path / "first", address)
    machine.begin()
    machine.answer(10)
    machine.send(last=True)
    machine.answer(10)
    machine.close()
    program = (
        "import sys; from pathlib import Path; from tests.batch.state.remote_state.machine import JobMachine;"
        "machine = JobMachine(Path(sys.argv[1]), sys.argv[2]); machine.open(); machine.send()"
    )
    died = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "first"), address],
        env={**os.environ, failpoints.VARIABLE: "remote_state.manifest:1:kill"}, check=False,
    )  # fmt: skip
    assert died.returncode == -9
    left = storage.names("killed.job")
    second = JobMachine(tmp_path / "second", address)
    assert second.remote_state.fetch() is True
    assert second.recovered()[0] == 10
    second.open()
    second.send()
    second.close()
    # What the killed one had brought there, and no manifest names, is gone.
    assert len(storage.names("killed.job")) < len(left)


@pytest.mark.usefixtures("no_lease")
def test_what_is_damaged_there_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    machine = JobMachine(tmp_path / "first", str(folder))
    machine.begin()
    machine.answer(10)
    machine.send()
    machine.close()
    part = next(folder.glob("ok-*"))
    part.write_bytes(part.read_bytes()[:-1])
    with raises(BatchError, "job_damaged", naming=part.name):
        JobMachine(tmp_path / "second", str(folder)).remote_state.fetch()
    (folder / "manifest.json").write_text("{")
    with raises(BatchError, "job_damaged", naming="manifest.json"):
        JobMachine(tmp_path / "third", str(folder)).remote_state.fetch()


@pytest.mark.usefixtures("no_lease")
def test_a_state_that_is_fetched_is_not_on_the_disk_before_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are lines beside an old state."""
    first, second = (JobMachine(tmp_path / name, str(tmp_path / "carried")) for name in ("first", "second"))
    first.begin()
    first.answer(10)
    first.send()
    first.close()
    second.remote_state.fetch()
    second.open()
    second.answer(10)
    second.send()
    second.close()
    disk = Disk(tmp_path / "first", monkeypatch)
    disk.settle()
    again = JobMachine(tmp_path / "first", str(tmp_path / "carried"))
    assert again.remote_state.fetch() is True
    disk.check_all("the end of fetching")
    assert disk.lasting(again.directory.state)
    assert disk.faults == []
