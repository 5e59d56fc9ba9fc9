"""Searches of tables of PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import cast

import numpy as np
import pytest
from inflight_client import InflightError
from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from inflight.retrieval.table import Metric, PassageTable
from tests.fixtures.postgresql import PostgreSql

ROWS, DIMENSIONS = 500, 16
TABLE = '"S %"."Docs: 1%"'
DRAW = np.random.default_rng(3)
VECTORS = DRAW.standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
QUESTIONS = DRAW.standard_normal((20, DIMENSIONS)).astype(np.float32)


@pytest.fixture(scope="module")
def database(postgresql: PostgreSql) -> Iterator[Engine]:
    """Passages in a table with odd names, one of them without a vector."""
    engine = create_engine(postgresql.database().replace("postgresql:", "postgresql+psycopg:"))
    values = ", ".join(f"({n}, '{vector.tolist()}', 'passage {n}')" for n, vector in enumerate(VECTORS))
    do(
        engine,
        "CREATE EXTENSION vector",
        'CREATE SCHEMA "S %"',
        f'CREATE TABLE {TABLE} ("the id%" INT PRIMARY KEY, "e%m" vector({DIMENSIONS}), ":text" TEXT)',
        f"INSERT INTO {TABLE} VALUES {values}, (9001, NULL, 'no vector')",
    )
    yield engine
    engine.dispose()


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.connection.cursor().execute(statement)


def table_of(engine: Engine, metric: Metric = "cosine") -> PassageTable:
    table = PassageTable(engine, "S %.Docs: 1%", column="e%m", text=":text", metric=metric)
    table.check()
    return table


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_the_nearest_passages_of_each_question_are_found(metric: Metric, database: Engine) -> None:
    products = QUESTIONS @ VECTORS.T
    lengths = np.linalg.norm(QUESTIONS, axis=1)[:, None], np.linalg.norm(VECTORS, axis=1)
    distances = np.linalg.norm(QUESTIONS[:, None] - VECTORS, axis=2)
    scores = {"ip": products, "cosine": products / lengths[0] / lengths[1], "l2": -distances}[metric]
    found = table_of(database, metric).search(list(QUESTIONS), 7)
    assert len(found) == len(QUESTIONS)
    for passages, row in zip(found, scores, strict=True):
        wanted = np.argsort(-row)[:7]
        assert [passage.id for passage in passages] == wanted.tolist()
        assert passages.texts == tuple(f"passage {place}" for place in wanted)
        assert [passage.score for passage in passages] == pytest.approx(row[wanted].tolist(), abs=1e-4)


INDEXES = ["hnsw (embedding vector_cosine_ops)", "ivfflat (embedding vector_cosine_ops) WITH (lists = 16)"]


@pytest.fixture(params=INDEXES)
def indexed(request: pytest.FixtureRequest, database: Engine) -> Iterator[Engine]:
    """The same passages in the table `docs` with an index, which is used if it can be."""
    do(
        database,
        "DROP TABLE IF EXISTS docs CASCADE",
        f'CREATE TABLE docs AS SELECT "the id%" AS id, "e%m" AS embedding, ":text" AS text FROM {TABLE}',
        f"CREATE INDEX ON docs USING {request.param}",
        "ANALYZE docs",
    )
    engine = create_engine(database.url, connect_args={"options": "-c enable_seqscan=off"})
    yield engine
    engine.dispose()


def test_an_index_is_searched_for_as_many_passages_as_are_wanted(indexed: Engine, database: Engine) -> None:
    table = PassageTable(indexed, "docs")
    table.check()
    exact = table_of(database).search(list(QUESTIONS), 60)
    found = table.search(list(QUESTIONS), 60)
    assert [len(passages) for passages in found] == [60] * len(QUESTIONS), "40 by pgvector's defaults"
    recalls = [len({*one.texts} & {*other.texts}) / 60 for one, other in zip(found, exact, strict=True)]
    assert np.mean(recalls) > 0.5


def test_a_view_with_few_rows_of_an_index_is_searched_for_all_of_them(indexed: Engine, database: Engine) -> None:
    do(database, "CREATE VIEW few AS SELECT * FROM docs WHERE id % 100 = 7")
    table = PassageTable(indexed, "few", id="id")
    table.check()
    found = table.search(list(QUESTIONS), 5)
    lengths = np.linalg.norm(QUESTIONS, axis=1)[:, None] * np.linalg.norm(VECTORS[7::100], axis=1)
    wanted = np.argsort(-(QUESTIONS @ VECTORS[7::100].T) / lengths)
    assert [[one.id for one in passages] for passages in found] == (100 * wanted + 7).tolist()


def test_closing_waits_until_no_search_has_a_connection(database: Engine) -> None:
    engine = create_engine(database.url)
    connections = cast("QueuePool", engine.pool)
    table = table_of(engine)
    committing = Event()

    def slow(connection: Connection) -> None:
        committing.set()
        time.sleep(0.2)

    event.listen(engine, "commit", slow)
    with ThreadPoolExecutor() as pool:
        searching = pool.submit(table.search, list(QUESTIONS), 5)
        assert committing.wait(30)
        table.close()
        assert connections.checkedout() == 0
        searching.exception()  # or its answer
    with pytest.raises(InflightError) as refused:
        table.search(list(QUESTIONS), 5)
    assert refused.value.code == "cancelled"
    assert connections.checkedin() == 1, "that of the refused search is closed"
    engine.dispose()
