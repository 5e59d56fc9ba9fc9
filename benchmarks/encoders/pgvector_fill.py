"""Fill a table of PostgreSQL with the embeddings of JSON lines, undisturbed and through kills of job and server.

Runs over the same texts, on one server with MiniLM: the client's `embed` alone, before and after a batch job into
pgvector, since a machine's speed changes; and the same job while it and the server are killed in turn (kill -9). The
tables must be equal, and the index must find the nearest neighbours that an exact search finds. A PostgreSQL of the
package pgserver is started unless --database is given.

The ratio of wall times compares the job until all rows are written, its start included, with the client's `embed` of
the texts. The index is built after that, and its time is another figure.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import psutil
import psycopg
from inflight_client import AsyncClient

from benchmarks.encoders.minilm import minilm_engine
from benchmarks.figures import Figure, out_option, report
from inflight.deploy.server.server import Server, ServerSettings
from loadtests.workloads.text_generator import COMMON_WORDS
from tests.fixtures.postgresql import PostgreSql

_NEIGHBOURS = 10
_TOPICS = 500
"""Groups of texts that share most of their words, since texts of random words have no neighbours."""
_EQUAL = 0.99999
"""Least cosine of a text's vectors from two runs: texts are computed in other batches there."""
_POLL_SECONDS, _POLL_TO_KILL_SECONDS = 2.0, 0.1
"""How often the rows are counted, which reads the whole table: rarely where the time matters."""


@dataclass(frozen=True)
class Filling:
    """Seconds until all rows were in the table, and until the index was built; and what was killed how often."""

    rows: float
    whole: float
    runs: int
    job_kills: int
    server_kills: int


@click.command(help=__doc__)
@click.option("--engine", type=click.Path(path_type=Path), help="Engine directory.  [default: MiniLM]")
@click.option("--rows", default=100_000, show_default=True)
@click.option(
    "--kills", default=20, show_default=True, help="Kills in all: of the server and of the job in turn, half each."
)
@click.option("--words", default=12, show_default=True, help="Median number of words of a text.")
@click.option("--queries", default=200, show_default=True, help="Texts whose neighbours are compared.")
@click.option("--database", help="Address of an empty database.  [default: a PostgreSQL that is started here]")
@out_option("encoders_pgvector_fill")
def main(engine: Path | None, rows: int, kills: int, words: int, queries: int, database: str | None, out: Path) -> None:
    work = out.with_suffix(".files")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    texts = _texts(rows, words)
    source = work / "docs.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)))
    settings = ServerSettings(max_start_failures=kills + 1)
    with Server(engine or minilm_engine(), settings=settings) as server, _database(database) as address:
        before = asyncio.run(_embed(server.grpc_address, texts))
        print(f"embedding alone: {before:.1f} s, {rows / before:,.0f} texts/s", flush=True)
        calm = _fill(server, source, address, "calm", rows)
        print(f"job: {calm.rows:.1f} s, with the index {calm.whole:.1f} s", flush=True)
        after = asyncio.run(_embed(server.grpc_address, texts))
        print(f"embedding alone, once more: {after:.1f} s", flush=True)
        alone = (before + after) / 2
        rough = _fill(server, source, address, "rough", rows, kills)
        killed = f"{rough.job_kills} kills of the job and {rough.server_kills} of the server"
        print(f"job with {killed}: {rough.whole:.1f} s in {rough.runs} runs", flush=True)
        figures = _figures(address, rows, queries)
    report(
        out,
        [
            Figure("wall time, job until all rows are written / client's embed alone", [calm.rows / alone], "<= 1.15"),
            Figure("wall time, job with the index build / client's embed alone", [calm.whole / alone]),
            Figure("seconds of the index build, which come after the rows", [calm.whole - calm.rows]),
            Figure("kills of the job", [rough.job_kills], f">= {kills // 2}"),
            Figure("kills of the server", [rough.server_kills], f">= {kills // 2}"),
            Figure("texts/s, embedding alone", [rows / alone]),
            *figures,
        ],
        {"alone": [before, after], "calm": vars(calm), "rough": vars(rough), "rows": rows, "kills": kills},
    )


def _texts(count: int, words: int) -> list[str]:
    source = random.Random(11)
    topics = [source.sample(COMMON_WORDS, 12) for _ in range(_TOPICS)]
    texts = []
    for _ in range(count):
        topic, length = source.choice(topics), min(60, max(3, round(source.lognormvariate(np.log(words), 0.7))))
        texts.append(" ".join(source.choice(topic if source.random() < 0.7 else COMMON_WORDS) for _ in range(length)))
    return texts


@contextmanager
def _database(address: str | None) -> Iterator[str]:
    if address is not None:
        yield address
        return
    folder = Path(tempfile.mkdtemp(prefix="inflight-pgvector-"))
    server = PostgreSql(folder)
    try:
        yield server.database()
    finally:
        server.stop()
        shutil.rmtree(folder)


async def _embed(address: str, texts: Sequence[str]) -> float:
    async with AsyncClient(address) as client:
        await client.embed(texts[:500])
        began = time.perf_counter()
        found = await client.embed(texts)
        seconds = time.perf_counter() - began
    assert len(found) == len(texts)
    return seconds


def _fill(server: Server, source: Path, address: str, table: str, rows: int, kills: int = 0) -> Filling:
    """Run the job until it ends; kill it and the server in turn, at random numbers of rows in the table."""
    job_directory = source.with_name(f"{table}.job")
    command = [
        *(str(Path(sys.executable).with_name("inflight")), "batch", "run", str(source), "--task", "embed"),
        *("--id", "id", "--out", address, "--output-table", table, "--column", "embedding"),
        *("--job", str(job_directory), "--server", server.grpc_address, "--quiet"),
    ]
    moments = deque(sorted(random.Random(5).sample(range(rows * 95 // 100), kills)))
    killed = {"job": 0, "server": 0}
    began, runs, filled, code = time.perf_counter(), 0, 0.0, -int(signal.SIGKILL)
    while code == -signal.SIGKILL:
        runs += 1
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while job.poll() is None:
                time.sleep(_POLL_TO_KILL_SECONDS if kills else _POLL_SECONDS)
                found = _count(address, table)
                if not filled and found == rows:
                    filled = time.perf_counter() - began
                if moments and found >= moments[0] and job.poll() is None:
                    moments.popleft()
                    name, pid = ("job", job.pid) if len(moments) % 2 else ("server", server.pid)
                    print(f"{found:,} rows: kill of the {name}", flush=True)
                    psutil.Process(pid).kill()
                    killed[name] += 1
            code = job.wait()
        finally:
            job.kill()
    assert code == 0, code
    whole = time.perf_counter() - began
    return Filling(filled or whole, whole, runs, killed["job"], killed["server"])


def _count(address: str, table: str) -> int:
    with psycopg.connect(address) as connection:
        if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
            return 0
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
        return int(count)


def _figures(address: str, rows: int, queries: int) -> list[Figure]:
    with psycopg.connect(address) as connection:

        def one(statement: str) -> float:
            (value,) = connection.execute(statement).fetchone() or (0.0,)
            return float(value)

        found, ids = one("SELECT count(*) FROM rough"), one("SELECT count(DISTINCT id) FROM rough")
        least = one("SELECT min(1 - (r.embedding <=> c.embedding)) FROM rough r JOIN calm c USING (id)")
        equal = one("SELECT count(*) FROM rough r JOIN calm c USING (id) WHERE r.embedding = c.embedding")
        indexes = one("SELECT count(*) FROM pg_indexes WHERE tablename = 'rough' AND indexdef LIKE '%hnsw%'")
        chosen = random.Random(3).sample(range(rows), min(queries, rows))
        nearest = (
            "SELECT id FROM rough ORDER BY embedding <=> (SELECT embedding FROM rough WHERE id = %s)"
            f" LIMIT {_NEIGHBOURS}"
        )
        by_index = [_ids(connection, nearest, query) for query in chosen]
        connection.execute("SET enable_indexscan = off")
        exact = [_ids(connection, nearest, query) for query in chosen]
    recall = float(np.mean([len(one & other) / len(other) for one, other in zip(by_index, exact, strict=True)]))
    return [
        Figure("rows in the table / rows of the input, with kills", [found / rows], "1 to 1"),
        Figure("distinct ids / rows in the table, with kills", [ids / found], "1 to 1"),
        Figure("least cosine of a text's vectors with and without kills", [least], f">= {_EQUAL}"),
        Figure("vectors equal to the last bit with and without kills, share", [equal / rows]),
        Figure("indexes built, with kills", [indexes], "1 to 1"),
        Figure(f"recall@{_NEIGHBOURS} of the index against exact search", [recall], ">= 0.95"),
    ]


def _ids(connection: psycopg.Connection, statement: str, query: int) -> set[int]:
    return {int(row[0]) for row in connection.execute(statement, (query,))}


if __name__ == "__main__":
    main()
