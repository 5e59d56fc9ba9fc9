"""A job on one machine, whose state is uploaded, and an empty second machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.batch.state import remote_state
from tests.batch.state.remote_state.machine import JobMachine
from tests.fixtures.s3_server import S3TestBucket, s3_server


@pytest.fixture(scope="package")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["disk", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "carried")
    storage: S3TestBucket = request.getfixturevalue("storage")
    return storage.address(f"{tmp_path.name}.job")


@pytest.fixture
def first(tmp_path: Path, address: str) -> Iterator[JobMachine]:
    machine = JobMachine(tmp_path / "first", address)
    machine.begin()
    yield machine
    machine.close()


@pytest.fixture
def second(tmp_path: Path, address: str) -> JobMachine:
    return JobMachine(tmp_path / "second", address)


@pytest.fixture
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_state, "LEASE_SECONDS", 0.0)
