"""A job on one machine, whose state is carried, and an empty second machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.batch import carry
from tests.batch.carry.machine import Machine
from tests.deploy.storage import Storage, storage_server


@pytest.fixture(scope="package")
def storage() -> Iterator[Storage]:
    with storage_server() as one:
        yield one


@pytest.fixture(params=["disk", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "carried")
    storage: Storage = request.getfixturevalue("storage")
    return storage.address(f"{tmp_path.name}.job")


@pytest.fixture
def first(tmp_path: Path, address: str) -> Iterator[Machine]:
    machine = Machine(tmp_path / "first", address)
    machine.begin()
    yield machine
    machine.close()


@pytest.fixture
def second(tmp_path: Path, address: str) -> Machine:
    return Machine(tmp_path / "second", address)


@pytest.fixture
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "LEASE_SECONDS", 0.0)
