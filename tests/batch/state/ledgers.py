"""Ledgers of jobs, and outcomes to add."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.job.spec import OutputSpec
from inflight.batch.state.ledger import Ledger


def directory_at(path: Path) -> JobDirectory:
    directory = JobDirectory.from_output(OutputSpec(address=str(path / "answers.jsonl")))
    directory.path.mkdir(exist_ok=True)
    return directory


def kind_of(number: int) -> RowStatus:
    return RowStatus.ERROR if number % 7 == 3 else RowStatus.DEAD if number % 11 == 5 else RowStatus.OK


def outcome(number: int) -> RowResult:
    kind = kind_of(number)
    text = f'{{"id":"{number}","line":{number + 1}}}'.encode()
    code = "" if kind is RowStatus.OK else "prompt_too_long" if kind is RowStatus.ERROR else "row_invalid"
    return RowResult(number, number + 1, str(number), kind, text, code, code, tokens=(3, 5), attempts=2)


def add(ledger: Ledger, numbers: Iterable[int]) -> None:
    """Add the outcomes of these rows, durably."""
    for number in numbers:
        ledger.add(outcome(number))
    ledger.checkpoint()


def lines(directory: JobDirectory, kind: RowStatus) -> list[bytes]:
    path = directory.result_file(kind)
    return path.read_bytes().splitlines() if path.exists() else []


def die(ledger: Ledger) -> None:
    """As far as the disk can tell: nothing more is committed."""
    for file in ledger._files.values():
        file.close()
    ledger.database.close()
