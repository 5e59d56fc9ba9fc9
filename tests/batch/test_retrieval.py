"""Jobs whose prompts contain passages of a table, with servers whose answers depend on the texts only."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow.parquet as pq
import pytest
from inflight_client import InflightError

from inflight.batch.dispatch.retrieval import Encoders
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RetrievalSpec, RunOptions
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.verify.checker import verify
from tests.batch.outputs.shop import Shop
from tests.batch.scripted_backend import ScriptedBackend, echo, vector_of
from tests.batch.test_encode_jobs import lines_of, write_rows
from tests.fixtures.errors import raises
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.waiting import wait_until

TEXTS = [f"passage {n} about {'tea' if n % 2 else 'coffee'}" for n in range(40)]
QUESTIONS = [f"question {n} about tea" for n in range(50)]
TEMPLATE = "{{ passages }}\n\nQ: {{ question }}"
VECTORS = np.stack([vector_of(text) for text in TEXTS])


@pytest.fixture
def shop(database: Shop) -> Shop:
    """A table of passages."""
    database.do("CREATE EXTENSION vector", "CREATE TABLE docs (id BIGINT PRIMARY KEY, text TEXT, embedding vector(8))")
    database.do(*(f"INSERT INTO docs VALUES ({n}, '{text}', '{VECTORS[n].tolist()}')" for n, text in enumerate(TEXTS)))
    database.do("CREATE INDEX ON docs USING hnsw (embedding vector_cosine_ops)")
    return database


def job_of(folder: Path, shop: Shop, out: str = "answers.jsonl", template: str | None = TEMPLATE, **more: Any) -> Job:
    running = {name: more.pop(name) for name in (*RunOptions.model_fields,) if name in more}
    source_options = {name: more.pop(name) for name in ("keep", "limit", "row_format") if name in more}
    source = folder / "questions.jsonl"
    if not source.exists():
        write_rows(source, [{"id": n, "question": question} for n, question in enumerate(QUESTIONS)])
    return Job(
        input=InputSpec(address=str(source), id="id", template=template, **source_options),
        output=OutputSpec(address=str(folder / out)),
        retrieval=RetrievalSpec(**{"address": shop.address, "table": "docs", "top_k": 3, **more}),
        run_options=RunOptions(
            **{"servers": ("gpu1:8001",), "checkpoint_seconds": 0.05, "texts_per_request": 16, **running}
        ),
    )


def run(job: Job, encoder: ScriptedBackend | None = None, *more: ScriptedBackend) -> tuple[JobDirectory, JobResult]:
    embed = (encoder or ScriptedBackend(name="encoder"), *more)
    return JobDirectory.from_output(job.output), runner_of(job, Encoders(embed, embed)).run()


def runner_of(job: Job, encoders: Encoders | None = None, server: ScriptedBackend | None = None) -> JobRunner:
    encoders = encoders or Encoders((ScriptedBackend(name="encoder"),))
    directory = JobDirectory.from_output(job.output)
    return JobRunner(job, directory, backends=[server or ScriptedBackend()], encoders=encoders)


def nearest(question: str, count: int) -> list[int]:
    return [int(place) for place in np.argsort(-(VECTORS @ vector_of(question)))[:count]]


def test_prompts_have_the_nearest_passages_and_answers_their_sources(shop: Shop, tmp_path: Path) -> None:
    encoder = ScriptedBackend(name="encoder")
    directory, result = run(job_of(tmp_path, shop), encoder)
    assert (result.exit_code, result.counts.ok) == (0, 50)
    assert [len(group) for group in encoder.groups] == [16, 16, 16, 2], "questions are embedded together"
    for line in lines_of(tmp_path / "answers.jsonl"):
        question = QUESTIONS[line["id"]]
        places = nearest(question, 3)
        paragraphs = [f"[{n}] {TEXTS[place]}" for n, place in enumerate(places, 1)]
        assert line["text"] == "\n\n".join([*paragraphs, f"Q: {question}"])
        assert [source["id"] for source in line["sources"]] == places
        similarities = (VECTORS[places] @ vector_of(question)).tolist()
        assert [source["score"] for source in line["sources"]] == pytest.approx(similarities, abs=1e-5)
    assert verify(directory).complete


def test_a_reranker_chooses_among_more_passages(shop: Shop, tmp_path: Path) -> None:
    job = job_of(tmp_path, shop, "answers.parquet", rerank=True, candidates=10, keep=("question",))
    directory, result = run(job)
    assert result.exit_code == 0
    for row in pq.read_table(tmp_path / "answers.parquet").to_pylist():
        sources = json.loads(row["sources"])
        near = nearest(row["question"], 10)
        scores = {place: float(vector_of(row["question"]) @ vector_of(TEXTS[place])) for place in near}
        assert [source["id"] for source in sources] == sorted(near, key=lambda place: -scores[place])[:3]
        assert [source["rerank_score"] for source in sources] == pytest.approx(
            sorted(scores.values(), reverse=True)[:3]
        )
    assert verify(directory).complete


def test_a_template_may_go_through_the_passages_and_take_some(shop: Shop, tmp_path: Path) -> None:
    template = "{{ passages[1:] }}{% for one in passages %}{{ loop.index }}: {{ one.text }} ({{ one.id }}) {% endfor %}"
    run(job_of(tmp_path, shop, template=template, limit=1))
    (line,) = lines_of(tmp_path / "answers.jsonl")
    places = nearest(QUESTIONS[0], 3)
    slice_ = f"[1] {TEXTS[places[1]]}\n\n[2] {TEXTS[places[2]]}"
    assert line["text"] == slice_ + "".join(f"{n}: {TEXTS[place]} ({place}) " for n, place in enumerate(places, 1))


def test_a_row_whose_retrieval_fails_has_that_error(shop: Shop, tmp_path: Path) -> None:
    async def picky(server: ScriptedBackend, text: str) -> str | InflightError:
        codes = {"too long": "prompt_too_long", "deadly": "engine_died", "slow": "deadline_exceeded"}
        return next((InflightError(text, code) for say, code in codes.items() if say in text), await echo(server, text))

    rows: list[dict[str, Any]] = [{"id": n, "question": f"question {n}", "style": "short"} for n in range(12)]
    rows[2]["question"], rows[3]["question"], rows[4]["question"] = "too long", "deadly", "slow"
    rows[5]["question"], rows[6], rows[7]["style"] = None, {"id": 6}, None
    write_rows(tmp_path / "questions.jsonl", rows)
    job = job_of(tmp_path, shop, template=TEMPLATE + "{{ style }}", max_attempts=2, max_engine_crashes=2)
    directory, result = run(job, ScriptedBackend(picky, name="encoder"))
    assert (result.exit_code, result.counts.ok, result.counts.error, result.counts.dead) == (3, 6, 2, 4)
    assert [line["id"] for line in lines_of(tmp_path / "answers.jsonl")] == [0, 1, 8, 9, 10, 11]
    errors = {line["id"]: line["code"] for line in lines_of(directory.result_file(RowStatus.ERROR))}
    assert errors == {2: "prompt_too_long", 4: "deadline_exceeded"}
    dead = {line["id"]: line["code"] for line in lines_of(directory.result_file(RowStatus.DEAD))}
    assert dead == {"3": "row_crashed_engine", "5": "invalid_text", "6": "row_invalid", "7": "row_invalid"}
    assert verify(directory).complete


@pytest.mark.parametrize(("code", "dead"), [("engine_died", {3}), ("server_gone", set())])
def test_a_crash_counts_only_for_a_question_that_was_sent_alone(
    code: str, dead: set[int], shop: Shop, tmp_path: Path
) -> None:
    """Question 3 ends its server with all that is in flight: always, or twice, as a server that is killed."""
    crashes = 0

    async def crash(server: ScriptedBackend, text: str) -> str | InflightError:
        nonlocal crashes
        before = crashes
        if text == QUESTIONS[3] and (code == "engine_died" or crashes < 2):
            await asyncio.sleep(0.002)
            crashes += 1
        else:
            await asyncio.sleep(0.01)
        return InflightError("gone", code) if crashes > before else text

    job = job_of(tmp_path, shop, rerank=True, max_engine_crashes=1)
    encoders = Encoders((ScriptedBackend(name="embedder"),), (ScriptedBackend(crash, name="reranker"),))
    result = runner_of(job, encoders).run()
    assert (result.counts.ok, result.counts.codes) == (50 - len(dead), {"row_crashed_engine": 1} if dead else {})
    assert {line["id"] for line in lines_of(tmp_path / "answers.jsonl")} == {*range(50)} - dead


def test_encoders_that_do_not_answer_are_asked_again_and_the_next_one_is_asked(shop: Shop, tmp_path: Path) -> None:
    left = 3

    async def down(server: ScriptedBackend, text: str) -> str | InflightError:
        nonlocal left
        left -= 1
        return InflightError("nobody there", "server_unreachable") if left >= 0 else await echo(server, text)

    other = ScriptedBackend(name="other")
    _, result = run(job_of(tmp_path, shop), ScriptedBackend(down, name="encoder"), other)
    assert (result.exit_code, result.counts.ok) == (0, 50)
    assert other.asked


def test_a_job_stops_when_no_encoder_answers_in_time_and_a_resume_finishes_it(shop: Shop, tmp_path: Path) -> None:
    async def down(server: ScriptedBackend, text: str) -> str | InflightError:
        return InflightError("nobody there", "server_unreachable")

    job = job_of(tmp_path, shop, server_wait_timeout=0.3)
    _, result = run(job, ScriptedBackend(down, name="encoder"))
    assert (result.exit_code, result.code) == (75, "server_unreachable")
    other_table = job.model_copy(update={"retrieval": RetrievalSpec(address=shop.address, table="docs", top_k=4)})
    with raises(BatchError, "job_mismatch", naming="--retrieve-top-k"):
        run(other_table)
    directory, result = run(job)
    assert (result.exit_code, result.counts.ok) == (0, 50)
    assert verify(directory).complete


def test_failed_rows_are_retried_with_their_passages(shop: Shop, tmp_path: Path) -> None:
    async def slow(server: ScriptedBackend, text: str) -> str | InflightError:
        return InflightError(text, "deadline_exceeded") if "question 7 " in text else await echo(server, text)

    job = job_of(tmp_path, shop, max_attempts=1)
    directory, result = run(job, ScriptedBackend(slow, name="encoder"))
    assert (result.counts.ok, result.counts.error) == (49, 1)
    result = runner_of(job).run(retry_codes=())
    assert (result.exit_code, result.counts.ok) == (0, 50)
    line = lines_of(tmp_path / "answers.jsonl")[7]
    assert [source["id"] for source in line["sources"]] == nearest(QUESTIONS[7], 3)
    assert verify(directory).complete


def test_another_encoder_is_not_used(shop: Shop, tmp_path: Path) -> None:
    async def pauses(server: ScriptedBackend, text: str) -> str | InflightError:
        down = text == QUESTIONS[40] and server.asked.count(text) < 3
        return InflightError("a pause", "server_unreachable") if down else await echo(server, text)

    encoder, other = ScriptedBackend(pauses, name="encoder"), ScriptedBackend(name="other", build="another")
    _, result = run(job_of(tmp_path, shop), encoder, other)
    assert (result.exit_code, result.counts.ok) == (0, 50)
    assert not other.asked


def test_a_database_that_restarts_is_asked_again(shop: Shop, postgresql: PostgreSql, tmp_path: Path) -> None:
    async def restart(server: ScriptedBackend, text: str) -> str | InflightError:
        if text == QUESTIONS[20]:
            await asyncio.to_thread(postgresql.stop)
            await asyncio.to_thread(postgresql.start)
        return await echo(server, text)

    directory, result = run(job_of(tmp_path, shop), ScriptedBackend(restart, name="encoder"))
    assert (result.exit_code, result.counts.ok) == (0, 50)
    assert verify(directory).complete


@pytest.mark.parametrize(("timeout", "code"), [(600.0, ""), (0.3, "storage_unreachable")])
def test_a_job_ends_while_its_searches_are_blocked(timeout: float, code: str, shop: Shop, tmp_path: Path) -> None:
    """When it is stopped, or after its wait timeout."""

    async def lock(server: ScriptedBackend, text: str) -> str | InflightError:
        if text == QUESTIONS[0]:
            await asyncio.to_thread(other.execute, "LOCK TABLE docs")
        return text

    job = job_of(tmp_path, shop, server_wait_timeout=timeout)
    runner = runner_of(job, Encoders((ScriptedBackend(lock, name="encoder"),)))
    with ThreadPoolExecutor() as pool, psycopg.connect(shop.address) as other:
        running = pool.submit(runner.run)
        wait_until(lambda: shop.rows("SELECT pid FROM pg_locks WHERE NOT granted"))
        if not code:
            runner.stop()
            runner.stop()
        result = running.result(timeout=60)
    assert (result.exit_code, result.code) == (75, code)


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"table": "other"}, "input_not_found", "other"),
        ({"column": "vector"}, "input_not_found", "vector"),
        ({"column": "text"}, "input_invalid", "text"),
        ({"text": "body"}, "input_not_found", "body"),
        ({"dimensions": 4}, "input_invalid", "docs"),
        ({"table": "empty"}, "input_invalid", "empty"),
        ({"table": "unsized"}, "input_invalid", "unsized"),
        ({"address": "sqlite:///docs.db"}, "input_invalid", "docs.db"),
        ({"address": "postgresql://app:s3cret@127.0.0.1:1/shop"}, "storage_unreachable", "***"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_first_row(
    change: dict[str, Any], code: str, named: str, shop: Shop, tmp_path: Path
) -> None:
    shop.do(
        "CREATE TABLE empty (id INT PRIMARY KEY, text TEXT, embedding vector(8))",
        "CREATE TABLE unsized AS SELECT 1 AS id, 'tea' AS text, CAST('[1, 2, 3]' AS vector) AS embedding",
    )
    server = ScriptedBackend()
    job = job_of(tmp_path, shop, **change)
    result = runner_of(job, server=server).run()
    assert result.code == code
    assert named in result.message
    assert "s3cret" not in result.message
    assert not server.asked


@pytest.mark.parametrize("change", [{"template": "{{ question }}"}, {"keep": ("sources",)}, {"row_format": "openai"}])
def test_a_job_without_a_place_for_its_passages_is_refused(change: dict[str, Any], shop: Shop, tmp_path: Path) -> None:
    with raises(BatchError, "input_invalid"):
        run(job_of(tmp_path, shop, **change))


def test_a_password_is_hidden_in_the_manifest(shop: Shop, tmp_path: Path) -> None:
    user, at, place = shop.address.partition("@")
    job = job_of(tmp_path, shop, address=f"{user}:s3cret{at}{place}", limit=2)
    directory, result = run(job)
    assert result.exit_code == 0
    assert "s3cret" not in directory.manifest.read_text() + directory.summary.read_text()
