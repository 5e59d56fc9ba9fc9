"""Jobs for crash tests: their rows, and what must be so of every job that ended, whatever it went through."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.verify.checker import verify
from tests.batch.crash.job_processes import JobProcess, JobProcesses

WORDS = ("tea", "cup", "leaf", "pot", "milk", "water", "sugar", "spoon", "steam", "lemon")


def write_rows(path: Path, count: int, *, odd: bool = True) -> list[str]:
    """Rows of prompts, and among them, where `odd`: lines that are no row, ids met before, prompts too long.

    Returns the ids of those that have one, in their order; ids met before come up again.
    """
    draw = random.Random(count)
    ids: list[str] = []
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt = " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
            row = {"id": f"row-{number:05}", "prompt": prompt}
            kind = number % 50 if odd else 0
            if kind == 20:
                file.write('{"id": "torn", "prom\n')
                continue
            if kind == 30:
                row["id"] = ids[-5]
            if kind == 40:
                row["prompt"] = "tea " * 5000
            ids.append(row["id"])
            file.write(json.dumps(row) + "\n")
    return ids


def lines_of(out: Path) -> dict[RowStatus, bytes]:
    """The three files; the dead letters sorted, since they are written as they come."""
    directory = JobDirectory.find(out)
    contents = {
        kind: path.read_bytes() if (path := directory.result_file(kind)).exists() else b"" for kind in RowStatus
    }
    contents[RowStatus.DEAD] = b"".join(sorted(contents[RowStatus.DEAD].splitlines(keepends=True)))
    return contents


def check_whole(out: Path, undisturbed: Path, ids: Iterable[str], rows: int) -> None:
    """What every job must come to: each id has one record, the records are those of a job that nothing befell."""
    contents = lines_of(out)
    assert contents == lines_of(undisturbed)
    records = [json.loads(line) for kind in (RowStatus.OK, RowStatus.ERROR) for line in contents[kind].splitlines()]
    assert Counter(record["id"] for record in records) == dict.fromkeys(set(ids), 1)
    assert sum(text.count(b"\n") for text in contents.values()) == rows
    assert all(text.endswith(b"\n") for text in contents.values() if text)
    verdict = verify(JobDirectory.find(out))
    assert verdict.complete, verdict


ENDED, STOPPED = 3, 75
"""Exit codes of a job that ended with rows that failed, and of one that can be resumed."""


class DisturbedJob:
    """A job over rows of all kinds, and the same one without what befalls it."""

    def __init__(self, lives: JobProcesses, address: str, folder: Path, rows: int, *options: str) -> None:
        self._lives, self._source, self._count = lives, folder / "rows.jsonl", rows
        self.ids = write_rows(self._source, rows)
        self.address, self._options = address, options
        self.out, self.undisturbed = folder / "answers.jsonl", folder / "undisturbed.jsonl"
        assert self.start(out=self.undisturbed).wait() == ENDED

    def start(self, *more: str, out: Path | None = None, failpoint: str = "", **limits: Any) -> JobProcess:
        job = ("run", self._source, "--out", out or self.out, "--id", "id", "--server", self.address)
        return self._lives.start(*job, *self._options, *more, failpoint=failpoint, **limits)

    def resume(self, *more: str) -> JobProcess:
        return self._lives.run("resume", self.out, *more)

    def check_whole(self) -> None:
        check_whole(self.out, self.undisturbed, self.ids, self._count)


@dataclass(frozen=True)
class DoneRows:
    """What a dead process left behind: what its state has committed, and the files' own lengths, by kind."""

    next: int
    committed: dict[str, int]
    lengths: dict[str, int]
    half_line: bool

    @property
    def uncommitted(self) -> int:
        """Bytes of output that were written, and were not committed: it died while output was being written."""
        return sum(length - self.committed.get(kind, 0) for kind, length in self.lengths.items())


def done_rows(out: Path, scratch: Path) -> DoneRows:
    """Look at a copy, so that the next process finds what the dead one left."""
    try:
        directory = JobDirectory.find(out)
    except Exception:
        return DoneRows(0, {}, {}, False)
    for path in scratch.glob("state.db*"):
        path.unlink()
    for path in directory.path.glob("state.db*"):
        shutil.copy(path, scratch / path.name)
    checkpoint: dict[str, Any] = {}
    if directory.state.exists():
        with closing(sqlite3.connect(scratch / "state.db")) as database:
            try:
                value = database.execute("SELECT value FROM meta WHERE name = 'checkpoint'").fetchone()
            except sqlite3.OperationalError:
                value = None  # it died before it had a table
            checkpoint = json.loads(value[0]) if value else {}
    files = {str(kind): path for kind in RowStatus if (path := directory.result_file(kind)).exists()}
    ends = [path.read_bytes()[-1:] for path in files.values() if path.stat().st_size]
    return DoneRows(
        checkpoint.get("next", 0),
        checkpoint.get("lengths", {}),
        {kind: path.stat().st_size for kind, path in files.items()},
        any(end != b"\n" for end in ends),
    )
