"""Verifying a job: what it swears to, and what it finds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.runner import JobRunner
from inflight.batch.state.ledger import Ledger
from inflight.batch.verify.checker import verify
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.errors import raises


def _plain(count: int) -> list[bytes]:
    """Rows, of which the fourth is no JSON, the fifth has no id, and the sixth the id of the first."""
    rows = [json.dumps({"sku": f"p-{n}", "prompt": f"Describe {n}"}).encode() for n in range(count)]
    rows[3:6] = [b'{"sku": "p-3", "prompt"', b'{"prompt": "who?"}', rows[0]]
    return rows


def _openai(count: int) -> list[bytes]:
    row = {"method": "POST", "url": "/v1/completions"}
    rows = [
        json.dumps({"custom_id": f"r-{n}", **row, "body": {"model": "m", "prompt": f"Describe {n}"}}).encode()
        for n in range(count)
    ]
    rows[3:6] = [b"{", b'{"body": {}}', rows[0]]
    return rows


def _job(folder: Path, rows: list[bytes], answers: str = "answers.jsonl", **more: Any) -> Job:
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    id_ = "sku" if b"sku" in rows[0] else None
    return Job(input=InputSpec(address=str(path), id=id_, **more), output=OutputSpec(address=str(folder / answers)))


def _run(job: Job, directory: JobDirectory | None = None) -> JobDirectory:
    """Run a job whose row seven is refused."""

    async def refusing(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return InflightError("too long", "prompt_too_long") if prompt == "Describe 7" else f"Answer\n{prompt}"

    directory = directory or JobDirectory.from_output(job.output)
    JobRunner(job, directory, backends=[ScriptedBackend(refusing)]).run()
    return directory


@pytest.mark.parametrize("rows", [_plain, _openai])
def test_a_job_that_did_what_it_should(tmp_path: Path, rows: Callable[[int], list[bytes]]) -> None:
    verdict = verify(_run(_job(tmp_path, rows(20))))
    assert verdict.messages() == ["20 rows = 16 ok + 1 error + 3 dead: every row exactly once."]
    assert verdict.complete


@pytest.mark.parametrize("answers", ["out.csv", "out.parquet", "out.jsonl.gz"])
def test_an_output_that_was_made_of_the_answers_is_looked_at_too(tmp_path: Path, answers: str) -> None:
    directory = _run(_job(tmp_path, _plain(20), answers))
    assert verify(directory).complete
    (tmp_path / answers).write_bytes((tmp_path / answers).read_bytes()[:-25])
    verdict = verify(directory)
    assert not verdict.complete
    assert verdict.output.count or "can't be compared with the answers" in verdict.output_error


@pytest.mark.parametrize("keep", [("custom_id",), ("custom_id", "response", "error")])
def test_columns_by_the_names_of_openai_s_lines_may_be_kept(tmp_path: Path, keep: tuple[str, ...]) -> None:
    rows = [json.dumps({"sku": n, "prompt": "Tea?", **dict.fromkeys(keep, n)}).encode() for n in range(10)]
    directory = _run(_job(tmp_path, rows, "out.csv", keep=keep))
    assert verify(directory).complete
    assert (tmp_path / "out.csv").read_text().splitlines()[0].endswith(",".join(keep))


def test_a_table_is_looked_at_too(tmp_path: Path) -> None:
    job = _job(tmp_path, _plain(20))
    job = job.model_copy(update={"output": OutputSpec(address=f"sqlite:///{tmp_path}/shop.db", table="texts")})
    directory = JobDirectory.from_output(job.output, tmp_path / "texts.job")
    _run(job, directory=directory)
    assert verify(directory).complete
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("UPDATE texts SET text = 'other' WHERE id = 'p-2'")
        shop.execute("DELETE FROM texts WHERE id = 'p-8'")
        shop.commit()
    assert "Answers that are missing from the output or different: 2 (p-2, p-8)." in verify(directory).messages()


def test_only_the_rows_of_the_job_count(tmp_path: Path) -> None:
    verdict = verify(_run(_job(tmp_path, _plain(20), limit=9)))
    assert (verdict.rows, verdict.ok, verdict.error, verdict.dead) == (9, 5, 1, 3)
    assert verdict.complete


def test_a_job_that_is_not_finished_says_what_is_open(tmp_path: Path) -> None:
    job = _job(tmp_path, _plain(20))
    directory = _run(job.model_copy(update={"input": job.input.model_copy(update={"limit": 12})}))
    directory.write_job(job)
    with closing(Ledger(directory)) as ledger:
        ledger.remember("finished", False)
    with directory.result_file(RowStatus.OK).open("ab") as file:
        file.write(b'{"id": "p-12", "te')
    verdict = verify(directory)
    assert verdict.messages() == [
        "20 rows = 8 ok + 1 error + 3 dead + 8 open.",
        "The job is not finished; resume it.",
    ]
    assert verdict.consistent
    assert not verdict.complete


def _lines(directory: JobDirectory, kind: RowStatus, change: Callable[[list[bytes]], Iterable[bytes]]) -> None:
    path = directory.result_file(kind)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (RowStatus.OK, lambda lines: lines[1:], "Rows without a record: 1 (p-0)."),
        (RowStatus.OK, lambda lines: [*lines, lines[2]], "Rows with more than one record: 1 (p-2)."),
        (
            RowStatus.ERROR,
            lambda lines: [b'{"id": "p-2"}\n', *lines],
            "Rows with more than one record: 1 (p-2).",
        ),
        (RowStatus.OK, lambda lines: [*lines, b'{"id": "x"}\n'], "Records that belong to no row: 1 (x)."),
        (RowStatus.DEAD, lambda lines: [*lines, lines[0]], "Rows with more than one record: 1 (line 4)."),
        (RowStatus.DEAD, lambda lines: lines[:2], "Rows without a record: 1 (p-0)."),
        (RowStatus.DEAD, lambda lines: [*lines, b'{"line": 99}\n'], "Records that belong to no row: 1 (line 99)."),
        (RowStatus.OK, lambda lines: [*lines[:-1], lines[-1][:-9]], "Lines that can't be read: 1 ({path}:16)."),
        (RowStatus.OK, lambda lines: [lines[0], b"\0\0\0\n", *lines[2:]], "Lines that can't be read: 1 ({path}:2)."),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, kind: RowStatus, change: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    directory = _run(_job(tmp_path, _plain(20)))
    _lines(directory, kind, change)
    verdict = verify(directory)
    assert message.replace("{path}", str(directory.result_file(kind))) in verdict.messages()
    assert not verdict.complete


def test_an_input_that_is_another_one(tmp_path: Path) -> None:
    directory = _run(_job(tmp_path, _plain(20)))
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(_plain(21)))
    with raises(BatchError, "input_changed", naming="answers.job"):
        verify(directory)


def test_a_state_that_is_none(tmp_path: Path) -> None:
    directory = _run(_job(tmp_path, _plain(20)))
    directory.state.write_bytes(b"no database" * 100)
    with raises(BatchError, "job_damaged", naming="state.db"):
        verify(directory)


def test_a_job_that_runs_is_not_finished(tmp_path: Path) -> None:
    directory = _run(_job(tmp_path, _plain(20)))
    with closing(Ledger(directory)):
        assert not verify(directory).finished
