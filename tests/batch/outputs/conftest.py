"""Where outputs go: databases, and a storage with S3's API on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch.outputs.shop import Shop
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.s3_server import S3TestBucket, s3_server


@pytest.fixture(scope="session")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as one:
        yield one


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path}/shop.db"
    else:
        server: PostgreSql = request.getfixturevalue("postgresql")
        address = server.database()
    one = Shop(address)
    yield one
    one.close()


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Shop]:
    one = Shop(f"sqlite:///{tmp_path}/shop.db")
    yield one
    one.close()
