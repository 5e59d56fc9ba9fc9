"""Jobs that embed, classify or rerank their rows, run by a server whose answers depend on the texts only."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import EncodeSpec, InputSpec, Job, OutputSpec, RunOptions, Task
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.verify.checker import verify
from tests.batch.outputs.shop import Shop
from tests.batch.scripted_backend import DIMENSIONS, ScriptedBackend, echo, vector_of
from tests.fixtures.errors import raises
from tests.fixtures.postgresql import PostgreSql

TEXTS = [f"text {n} about {'tea' if n % 2 else 'coffee'}" for n in range(90)]


def job_of(source: Path, out: str, task: Any, keep: tuple[str, ...] = (), **more: Any) -> Job:
    encode = {name: more.pop(name) for name in (*EncodeSpec.model_fields,) if name in more}
    prompt = "query" if task == "rerank" else "text"
    return Job(
        input=InputSpec(address=str(source), id=more.pop("id", "id"), prompt=prompt, keep=keep),
        output=OutputSpec(address=out, **more),
        encode=EncodeSpec(task=task, **encode),
        run_options=RunOptions(servers=("gpu1:8001",), checkpoint_seconds=0.05, texts_per_request=16),
    )


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def run(job: Job, *servers: ScriptedBackend) -> tuple[JobDirectory, JobResult]:
    directory = directory_of(job)
    return directory, JobRunner(job, directory, backends=servers or [ScriptedBackend()]).run()


def directory_of(job: Job) -> JobDirectory:
    """Beside the input, also where the output is a database."""
    place = Path(job.input.address)
    return JobDirectory.from_output(job.output, place.with_suffix(".job") if "://" in job.output.address else None)


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_whole(job: Job) -> JobResult:
    directory, result = run(job)
    assert result.exit_code == 0, result
    assert verify(directory).complete
    return result


def documents(count: int = len(TEXTS)) -> list[dict[str, Any]]:
    return [{"id": n, "text": TEXTS[n], "price": n / 4} for n in range(count)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_each_row_has_the_embedding_of_its_text(suffix: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "docs.parquet", documents())
    out = tmp_path / f"vectors.{suffix}"
    result = run_whole(job_of(source, str(out), "embed", keep=("price",)))
    assert (result.counts.texts, result.counts.input_tokens) == (90, 90 * 4)
    if suffix == "parquet":
        table = pq.read_table(out)
        assert table.schema.field("embedding").type == pa.list_(pa.float32(), DIMENSIONS)
        rows = table.to_pylist()
    elif suffix == "jsonl":
        rows = lines_of(out)
    else:
        with out.open(newline="") as file:
            rows = [{**row, "embedding": json.loads(row["embedding"])} for row in csv.DictReader(file)]
    assert len(rows) == 90
    for n, row in enumerate(rows):
        assert np.array_equal(np.float32(row["embedding"]), vector_of(TEXTS[n]))
        assert (int(row["id"]), float(row["price"]), int(row["input_tokens"])) == (n, n / 4, 4)


def test_classes_and_scores_are_columns(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "docs.jsonl", documents(20))
    run_whole(job_of(source, str(tmp_path / "classes.parquet"), "classify"))
    rows = pq.read_table(tmp_path / "classes.parquet").to_pylist()
    assert {row["label"] for row in rows} == {"bad", "good"}
    assert all(dict(row["scores"])[row["label"]] == row["score"] >= 0.5 for row in rows)

    queries = [{"id": n, "query": TEXTS[n], "documents": TEXTS[n : n + 5]} for n in range(10)]
    source = write_rows(tmp_path / "queries.jsonl", queries)
    result = run_whole(job_of(source, str(tmp_path / "scores.parquet"), "rerank"))
    assert result.counts.texts == 50
    for n, row in enumerate(pq.read_table(tmp_path / "scores.parquet").to_pylist()):
        assert row["scores"][0] == pytest.approx(1.0)
        assert row["scores"] == pytest.approx(
            [float(vector_of(TEXTS[n]) @ vector_of(document)) for document in TEXTS[n : n + 5]]
        )
        assert [row["scores"][place] for place in row["ranking"]] == sorted(row["scores"], reverse=True)


@pytest.mark.parametrize("task", ["classify", "rerank"])
def test_classes_and_scores_go_to_tables(task: Task, tmp_path: Path) -> None:
    rows = [{"id": n, "text": TEXTS[n], "query": TEXTS[n], "documents": TEXTS[:3]} for n in range(20)]
    source = write_rows(tmp_path / "docs.jsonl", rows)
    run_whole(job_of(source, f"sqlite:///{tmp_path}/shop.db", task, table="answers"))
    shop = Shop(f"sqlite:///{tmp_path}/shop.db")
    column = "label" if task == "classify" else "ranking"
    assert [row[0] for row in shop.rows("SELECT id FROM answers ORDER BY id")] == list(range(20))
    assert all(row[0] for row in shop.rows(f"SELECT {column} FROM answers"))
    shop.close()


def test_a_row_that_can_not_be_sent_is_a_dead_letter_and_one_that_is_refused_an_error(tmp_path: Path) -> None:
    async def picky(server: ScriptedBackend, text: str) -> str | InflightError:
        return InflightError("too long", "prompt_too_long") if "text 3 " in text else await echo(server, text)

    rows = documents(6)
    rows[1]["text"], rows[2] = None, {"id": 2}
    directory, result = run(
        job_of(write_rows(tmp_path / "docs.jsonl", rows), str(tmp_path / "v.parquet"), "embed"), ScriptedBackend(picky)
    )
    assert (result.exit_code, result.counts.ok, result.counts.error, result.counts.dead) == (3, 3, 1, 2)
    assert result.counts.codes["prompt_too_long"] == 1
    assert pq.read_table(tmp_path / "v.parquet").column("id").to_pylist() == [0, 4, 5]
    assert verify(directory).complete


def request(custom_id: str, url: str = "/v1/embeddings", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "minilm", **body}}


def test_requests_of_openais_format_are_answered_in_it(tmp_path: Path) -> None:
    rows = [
        request("one", input="tea"),
        request("many", input=["tea", "cup"], dimensions=4),
        request("ids", input=[5, 6, 7], encoding_format="base64"),
        request("chat", "/v1/chat/completions", messages=[]),
        request("odd", input=5),
        request("errors", input=["tea", "cup"], return_errors=True),
        request("urgent", input="tea", priority=7),
        request("unnamed", input="tea", model=None),
    ]
    source = write_rows(tmp_path / "batch.jsonl", rows)
    directory, result = run(job_of(source, str(tmp_path / "out.jsonl"), "embed", id=None))
    assert (result.counts.ok, result.counts.error, result.counts.dead, result.counts.texts) == (4, 3, 1, 5)
    by_id = {line["custom_id"]: line for line in lines_of(tmp_path / "out.jsonl")}
    bodies = {name: line["response"]["body"] for name, line in by_id.items()}
    assert all(body["object"] == "list" for body in bodies.values())
    assert {name: body["model"] for name, body in bodies.items()} == {
        **dict.fromkeys(("one", "many", "ids"), "minilm"),
        "unnamed": "embedding",
    }
    assert np.float32(bodies["one"]["data"][0]["embedding"]) == pytest.approx(vector_of("tea"))
    assert [item["index"] for item in bodies["many"]["data"]] == [0, 1]
    assert np.float32(bodies["many"]["data"][1]["embedding"]) == pytest.approx(vector_of("cup", 4))
    raw = base64.b64decode(bodies["ids"]["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(raw, "<f4"), vector_of("(5, 6, 7)"))
    errors = lines_of(directory.result_file(RowStatus.ERROR))
    params = {line["custom_id"]: line["response"]["body"]["error"]["param"] for line in errors}
    assert params == {"odd": "input", "errors": "return_errors", "urgent": "priority"}
    assert {line["response"]["status_code"] for line in errors} == {400}


def test_requests_of_openais_format_fill_a_column_of_vectors(tmp_path: Path) -> None:
    rows = [
        request("one", input="tea"),
        request("many", input=["tea", "cup"]),
        request("less", input="a", dimensions=4),
    ]
    source = write_rows(tmp_path / "batch.jsonl", rows)
    _, result = run(job_of(source, str(tmp_path / "out.parquet"), "embed", id=None))
    assert (result.counts.ok, result.counts.codes) == (1, {"unsupported_input": 2})
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert np.array_equal(np.float32(row["embedding"]), vector_of("tea"))


def test_embeddings_fill_a_table_of_postgresql(postgresql: PostgreSql, tmp_path: Path) -> None:
    shop = Shop(postgresql.database())
    source = write_rows(tmp_path / "docs.parquet", documents())
    job = job_of(source, shop.address, "embed", keep=("text", "price"), table="docs", column="embedding")
    result = run_whole(job)
    assert result.outputs[0] == f"{shop.address} (table docs)"
    rows = shop.rows("SELECT id, embedding::text, text, price, input_tokens FROM docs ORDER BY id")
    assert [(row[0], *row[2:]) for row in rows] == [(n, TEXTS[n], n / 4, 4) for n in range(90)]
    assert all(np.array_equal(np.float32(json.loads(row[1])), vector_of(TEXTS[n])) for n, row in enumerate(rows))
    nearest = "SELECT id FROM docs ORDER BY embedding <=> (SELECT embedding FROM docs WHERE id = 7) LIMIT 1"
    assert shop.rows(nearest) == [(7,)]
    assert shop.rows("SELECT indexname FROM pg_indexes WHERE tablename = 'docs' AND indexdef LIKE '%USING hnsw%'")
    shop.do(
        "UPDATE docs SET embedding = (SELECT embedding FROM docs WHERE id = 1) WHERE id = 2",
        "DELETE FROM docs WHERE id = 3",
    )
    verdict = verify(directory_of(job))
    assert verdict.output.first == ("2", "3")
    shop.close()


@pytest.mark.parametrize(
    ("statement", "more", "named"),
    [
        ("CREATE TABLE docs (id BIGINT PRIMARY KEY, embedding vector(5))", {}, "vector(5)"),
        ("CREATE TABLE docs (id BIGINT PRIMARY KEY, embedding TEXT)", {}, "text"),
        ("CREATE TABLE docs (id BIGINT PRIMARY KEY, embedding vector)", {}, "embedding"),
        ("CREATE TABLE docs (id BIGINT PRIMARY KEY, other vector(8))", {}, "embedding"),
        ("CREATE TABLE docs (id BIGINT, embedding vector(8))", {"key": "id"}, "unique"),
        ("CREATE TABLE docs (id BIGINT PRIMARY KEY, embedding vector(8), body TEXT NOT NULL)", {}, "body"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_first_row(
    statement: str, more: dict[str, Any], named: str, database: Shop, tmp_path: Path
) -> None:
    database.do("CREATE EXTENSION vector", statement)
    source = write_rows(tmp_path / "docs.jsonl", documents(5))
    job = job_of(source, database.address, "embed", table="docs", column="embedding", **more)
    server = ScriptedBackend()
    try:
        _, result = run(job, server)
        refusal = BatchError(result.message, result.code)
    except BatchError as error:
        refusal = error
    assert refusal.code == "output_invalid"
    assert named in str(refusal)
    assert not set(server.asked) & set(TEXTS)
    assert database.rows("SELECT count(*) FROM docs") == [(0,)]


def test_rows_of_a_table_get_their_embeddings_in_it(database: Shop, tmp_path: Path) -> None:
    database.do(
        "CREATE EXTENSION vector", 'CREATE TABLE "Docs%" ("Nr" INT PRIMARY KEY, text TEXT NOT NULL, "Vector" vector(8))'
    )
    database.do(*(f"INSERT INTO \"Docs%\" VALUES ({n}, '{TEXTS[n]}', NULL)" for n in range(20)))
    job = Job(
        input=InputSpec(address=database.address, table="Docs%", prompt="text"),
        output=OutputSpec(address=database.address, table="Docs%", column="Vector", key="Nr"),
        encode=EncodeSpec(task="embed", index="ivfflat", metric="ip"),
        run_options=RunOptions(servers=("gpu1:8001",)),
    )
    directory = JobDirectory.from_output(job.output, tmp_path / "a.job")
    assert JobRunner(job, directory, backends=[ScriptedBackend()]).run().exit_code == 0
    rows = database.rows('SELECT "Nr", "Vector"::text FROM "Docs%" ORDER BY 1')
    assert all(np.array_equal(np.float32(json.loads(vector)), vector_of(TEXTS[n])) for n, vector in rows)
    assert database.rows("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%ivfflat%vector_ip_ops%'") == [(1,)]
    assert verify(directory).complete


def test_an_index_that_can_not_be_built_can_be_left_out(database: Shop, tmp_path: Path) -> None:
    database.do(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'",
        "CREATE EVENT TRIGGER one ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION refuse()",
    )
    source = write_rows(tmp_path / "docs.jsonl", documents(5))
    job = job_of(source, database.address, "embed", table="docs")
    _, result = run(job)
    assert (result.code, result.counts.ok) == ("output_failed", 5)
    run_whole(job_of(source, database.address, "embed", table="docs", index="none"))
    with raises(BatchError, "job_mismatch", naming="--index"):
        run(job)


def test_embeddings_need_postgresql(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "docs.jsonl", documents(5))
    with raises(BatchError, "output_invalid", naming="shop.db"):
        run(job_of(source, f"sqlite:///{tmp_path}/shop.db", "embed", table="docs"))


def test_a_server_with_vectors_of_another_size_is_not_used(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "docs.jsonl", documents(5))
    job = job_of(source, str(tmp_path / "v.jsonl"), "embed")
    other = ScriptedBackend(name="other")
    other.dimensions = 4
    assert run(job, ScriptedBackend(), other)[1].exit_code == 0
    sizes = {len(line["embedding"]) for line in lines_of(tmp_path / "v.jsonl")}
    assert len(sizes) == 1
