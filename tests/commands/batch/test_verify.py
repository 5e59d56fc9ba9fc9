"""`inflight batch verify`: what it says, and the exit code that a pipeline sees."""

from __future__ import annotations

import json
from pathlib import Path

from inflight.batch.job.rows import RowStatus
from tests.batch.sample_jobs import job_of, run
from tests.fixtures.command_runner import CommandRunner


def test_a_finished_job_agrees_until_somebody_takes_a_line_away(batch: CommandRunner, tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, ("tea", "so long", "{", "milk")))
    done = batch("verify", "answers.jsonl")
    assert (done.code, done.out) == (0, "4 rows = 2 ok + 1 error + 1 dead: every row exactly once.\n")
    (verdict,) = batch("verify", "answers.job", "--json").objects
    assert (verdict["complete"], verdict["rows"], verdict["ok"]) == (True, 4, 2)

    answers = directory.result_file(RowStatus.OK)
    answers.write_bytes(answers.read_bytes().splitlines(keepends=True)[0])
    done = batch("verify", "answers.jsonl")
    assert done.code == 1
    assert "Rows without a record: 1 (r3)." in done.out
    done = batch("verify", "answers.jsonl", "--json")
    assert done.code == 1
    assert json.loads(done.out)["missing"] == {"count": 1, "first": ["r3"]}
