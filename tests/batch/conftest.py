"""A database of PostgreSQL, for a test alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.batch.outputs.shop import Shop
from tests.fixtures.postgresql import PostgreSql


@pytest.fixture
def database(postgresql: PostgreSql) -> Iterator[Shop]:
    with closing(Shop(postgresql.database())) as shop:
        yield shop
