"""A database of PostgreSQL for a test alone, and queues of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.batch.outputs.shop import Shop
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.queues import QUEUES, SampleQueue, SampleTable, queue_of


@pytest.fixture
def database(postgresql: PostgreSql) -> Iterator[Shop]:
    with closing(Shop(postgresql.database())) as shop:
        yield shop


@pytest.fixture(scope="module", params=QUEUES)
def queue(
    request: pytest.FixtureRequest, postgresql: PostgreSql, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SampleQueue]:
    """Each test leaves it empty."""
    with queue_of(request.param, postgresql, tmp_path_factory.mktemp("queue")) as made:
        yield made


@pytest.fixture
def table(database: Shop) -> SampleTable:
    return SampleTable(database)
