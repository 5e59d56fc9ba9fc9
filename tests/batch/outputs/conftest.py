"""Where outputs go: databases, and a storage with S3's API on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.batch.outputs.shop import Shop
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.s3_server import S3TestBucket, s3_server


@pytest.fixture(scope="session")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path}/shop.db"
    else:
        postgresql: PostgreSql = request.getfixturevalue("postgresql")
        address = postgresql.database()
    with closing(Shop(address)) as database:
        yield database


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Shop]:
    with closing(Shop(f"sqlite:///{tmp_path}/shop.db")) as database:
        yield database
