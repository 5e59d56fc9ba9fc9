"""Rows that failed are retried, however the input has changed: each by its content, not by its position."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.reporting.progress import JobState
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.state.retry_ledger import open_ledger
from inflight.batch.verify.checker import verify
from tests.batch.scripted_backend import Behaviour, ScriptedBackend, echo
from tests.fixtures.errors import raises

TABLE = "CREATE TABLE products (id {key}, name TEXT, description TEXT)"
UNDONE = "SELECT id, name FROM products WHERE description IS NULL"
CODES = {"2": "prompt_too_long", "5": "invalid_request"}


async def refuses(server: ScriptedBackend, prompt: str) -> str | InflightError:
    """Tea 2 is too long, tea 5 can't be asked."""
    code = CODES.get(prompt.removeprefix("tea "))
    return InflightError(f"no: {code}", code) if code else prompt


def sql(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def shop(folder: Path, key: str = "INTEGER PRIMARY KEY", rows: int = 6) -> str:
    insert = "INSERT INTO products VALUES ({0}, 'tea {0}', NULL)"
    sql(folder, TABLE.format(key=key), *(insert.format(number) for number in range(rows)))
    return f"sqlite:///{folder}/shop.db"


def job_of(folder: Path, **input: object) -> Job:
    return Job(
        input=InputSpec.model_validate({"prompt": "name", **input}),
        output=OutputSpec(address=str(folder / "answers.jsonl")),
        run_options=RunOptions(servers=("gpu1:8001",), checkpoint_seconds=0.02, max_attempts=1, max_engine_crashes=2),
    )


def live(job: Job, behaviour: Behaviour = echo, *, retry: tuple[str, ...] | None = None) -> tuple[JobResult, list[str]]:
    """How it ended, and what was asked, in order."""
    server = ScriptedBackend(behaviour)
    end = JobRunner(job, JobDirectory.from_output(job.output), backends=[server]).run(retry_codes=retry)
    return end, sorted(server.asked)


def records(job: Job) -> dict[str, list[str]]:
    """The ids of each file."""
    directory = JobDirectory.from_output(job.output)
    paths = {str(kind): directory.result_file(kind) for kind in RowStatus}
    return {
        kind: [str(json.loads(line)["id"]) for line in path.read_text().splitlines()] if path.exists() else []
        for kind, path in paths.items()
    }


def fill(folder: Path) -> None:
    """What a job does that writes its answers into the table."""
    sql(folder, "UPDATE products SET description = 'good' WHERE id NOT IN (2, 5)")


@pytest.mark.parametrize("codes", [("prompt_too_long",), ("invalid_request",), ()])
def test_a_query_that_gives_only_what_failed_is_asked_for_those_rows(tmp_path: Path, codes: tuple[str, ...]) -> None:
    job = job_of(tmp_path, address=shop(tmp_path), query=UNDONE, id="id")
    assert live(job, refuses)[0].exit_code == 3
    fill(tmp_path)
    end, asked = live(job, retry=codes)
    again = [number for number, code in CODES.items() if code in codes or not codes]
    assert asked == [f"tea {number}" for number in again]
    left = [number for number in CODES if number not in again]
    assert (end.state, end.exit_code) == (JobState.FINISHED, 3 if left else 0)
    assert records(job) == {"ok": [n for n in "012345" if n not in left], "error": left, "dead": []}
    if left:
        assert live(job, retry=())[0].exit_code == 0
        assert records(job) == {"ok": [*"012345"], "error": [], "dead": []}


def test_new_lines_tell_where_a_row_stood_when_the_job_began(tmp_path: Path) -> None:
    job = job_of(tmp_path, address=shop(tmp_path), query=UNDONE, id="id")
    live(job, refuses)
    fill(tmp_path)
    assert live(job, refuses, retry=())[0].exit_code == 3
    errors = JobDirectory.from_output(job.output).result_file(RowStatus.ERROR).read_text().splitlines()
    assert [(json.loads(line)["id"], json.loads(line)["line"]) for line in errors] == [(2, 3), (5, 6)]


def test_a_table_whose_rows_went_is_asked_for_those_that_failed(tmp_path: Path) -> None:
    job = job_of(tmp_path, address=shop(tmp_path), table="products")
    live(job, refuses)
    sql(tmp_path, "DELETE FROM products WHERE id IN (0, 3)")
    assert live(job, retry=())[1] == ["tea 2", "tea 5"]
    assert records(job)["ok"] == [*"012345"]


def test_a_row_that_is_gone_keeps_its_record_and_the_others_get_theirs(tmp_path: Path) -> None:
    job = job_of(tmp_path, address=shop(tmp_path), table="products")
    live(job, refuses)
    sql(tmp_path, "DELETE FROM products WHERE id = 2")
    end, asked = live(job, retry=())
    assert (end.code, asked) == ("input_changed", ["tea 5"])
    assert "1 of the rows to retry are no longer in the input ('2')" in end.message
    end, asked = live(job)
    assert (end.exit_code, asked) == (3, [])
    assert records(job) == {"ok": [*"01345"], "error": ["2"], "dead": []}


@pytest.mark.parametrize("options", [{}, {"id": "id"}])
def test_a_table_without_a_key_whose_rows_went(tmp_path: Path, options: dict[str, str]) -> None:
    """Rows that are known by their place alone can't be found any more; those with ids are."""
    job = job_of(tmp_path, address=shop(tmp_path, key="INTEGER"), table="products", **options)
    live(job, refuses)
    sql(tmp_path, "DELETE FROM products WHERE id = 0")
    if options:
        end, asked = live(job, retry=())
        assert (end.exit_code, asked) == (0, ["tea 2", "tea 5"])
        return
    with raises(BatchError, "input_changed", naming=("5", "6")):
        live(job, retry=())
    assert live(job)[0].state is JobState.FINISHED


def test_a_file_that_was_changed_where_nobody_looked_is_told(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    template = '{"id": "row-%d", "name": "tea %d", "about": "' + "x" * 80_000 + '"}\n'
    rows.write_text("".join(template % (number, number) for number in range(6)))
    job = job_of(tmp_path, address=str(rows), id="id")
    live(job, refuses)
    rows.write_text(rows.read_text().replace("row-2", "row-7"))
    end, asked = live(job, retry=("prompt_too_long",))
    assert (end.code, asked) == ("input_changed", [])
    assert "line 3" in end.message
    assert "'row-2'" in end.message
    assert "'row-7'" in end.message
    rows.write_text(rows.read_text().replace("row-7", "row-2"))
    assert live(job)[1] == ["tea 2"]
    assert verify(JobDirectory.from_output(job.output)).complete


def test_each_retry_asks_a_row_that_kills_engines_as_often_as_the_first(tmp_path: Path) -> None:
    job = job_of(tmp_path, address=shop(tmp_path), table="products")
    dies = 0

    async def dies_of_five(server: ScriptedBackend, prompt: str) -> str | InflightError:
        nonlocal dies
        if prompt != "tea 5":
            return prompt
        dies += 1
        return InflightError("the engine died", "engine_died")

    for codes in (None, ("row_crashed_engine",), ("row_crashed_engine",)):
        dies = 0
        end, _ = live(job, dies_of_five, retry=codes)
        assert (end.exit_code, end.counts.codes) == (3, {"row_crashed_engine": 1})
        assert dies >= job.run_options.max_engine_crashes


def test_a_job_whose_input_is_away_stays_finished(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": "row-{number}", "name": "tea {number}"}}\n' for number in range(6)))
    job = job_of(tmp_path, address=str(rows), id="id")
    live(job, refuses)
    directory = JobDirectory.from_output(job.output)
    for content, code in ((None, "input_not_found"), ('{"id": "row-0", "name": "tea"}\n', "input_changed")):
        moved = rows.rename(tmp_path / "moved.jsonl")
        if content is not None:
            rows.write_text(content)
        with raises(BatchError, code):
            live(job, retry=())
        moved.rename(rows)
        ledger = open_ledger(directory, 0)
        assert (ledger.recall("finished"), ledger.recall("retrying")) == (True, None)
        ledger.close()
        end, asked = live(job)
        assert (end.state, asked) == (JobState.FINISHED, [])
    assert live(job, retry=())[1] == ["tea 2", "tea 5"]


def test_a_job_that_has_not_ended_has_nothing_to_ask_once_more(tmp_path: Path) -> None:
    job = job_of(tmp_path, address=shop(tmp_path), table="products")
    with raises(BatchError, "job_failed", naming="answers.job"):
        live(job, retry=())
    assert live(job)[0].exit_code == 0
