"""Rows that failed are retried, and their new lines are where they belong."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.retry_ledger import RetryLedger, check_retry_codes, open_ledger, select_failed_rows
from tests.batch.state.ledgers import add, die, directory_at, kind_of, lines, outcome
from tests.fixtures.errors import raises

ROWS = 60


class Died(BaseException):
    """Instead of kill -9, which would end the test."""


def finished(path: Path) -> JobDirectory:
    directory = directory_at(path)
    with closing(Ledger(directory)) as ledger:
        add(ledger, range(ROWS))
    return directory


def selected(path: Path, codes: tuple[str, ...]) -> JobDirectory:
    """A finished job whose rows with these codes are to be retried."""
    directory = finished(path)
    with closing(Ledger(directory)) as ledger:
        assert select_failed_rows(ledger, codes) == sum(outcome(n).code in codes for n in range(ROWS))
    return directory


def retrial(directory: JobDirectory) -> RetryLedger:
    ledger = open_ledger(directory, 0)
    assert isinstance(ledger, RetryLedger)
    return ledger


def retry_all(ledger: RetryLedger) -> None:
    for number in range(ROWS):
        if not ledger.is_done(number):
            ledger.add(again(number))
    ledger.checkpoint()


def again(number: int) -> RowResult:
    """Every second one does better now."""
    kind = RowStatus.OK if number % 2 else kind_of(number)
    text = f'{{"id":"{number}","line":{number + 1},"again":true}}'.encode()
    return replace(outcome(number), status=kind, text=text, code="" if kind is RowStatus.OK else "deadline_exceeded")


def merged(directory: JobDirectory) -> None:
    """Live until all is merged."""
    ledger = retrial(directory)
    retry_all(ledger)
    assert ledger.remaining == 0
    ledger.merge()
    ledger.close()


def check(directory: JobDirectory, codes: tuple[str, ...]) -> None:
    asked = {n for n in range(ROWS) if outcome(n).code in codes}
    now = {n: again(n) if n in asked else outcome(n) for n in range(ROWS)}
    for kind in (RowStatus.OK, RowStatus.ERROR):
        assert lines(directory, kind) == [result.text for result in now.values() if result.status is kind]
    dead = [result for result in now.values() if result.status is RowStatus.DEAD]
    assert sorted(lines(directory, RowStatus.DEAD)) == sorted(result.text for result in dead)
    ledger = Ledger(directory)
    assert (ledger.counts.ok, ledger.counts.error, ledger.counts.dead) == tuple(
        sum(result.status is kind for result in now.values()) for kind in RowStatus
    )
    assert sum(ledger.counts.codes.values()) == ledger.counts.error + ledger.counts.dead
    assert [n for n, _, _ in ledger.failures()] == [n for n, result in now.items() if result.status is not RowStatus.OK]
    assert not ledger.recall("retrying")
    ledger.close()


@pytest.mark.parametrize("codes", [("prompt_too_long",), ("row_invalid",), ("prompt_too_long", "row_invalid")])
def test_new_lines_stand_in_the_places_of_the_old(tmp_path: Path, codes: tuple[str, ...]) -> None:
    directory = selected(tmp_path, codes)
    merged(directory)
    check(directory, codes)


def test_without_codes_those_that_were_asked(tmp_path: Path) -> None:
    """Of the dead letters only rows that killed engines."""
    ledger = Ledger(finished(tmp_path))
    for number, code in ((ROWS, "row_crashed_engine"), (ROWS + 1, "row_invalid")):
        ledger.add(RowResult(number, number + 1, str(number), RowStatus.DEAD, b"{}", code, code))
    ledger.checkpoint()
    asked = [n for n in range(ROWS) if kind_of(n) is RowStatus.ERROR]
    assert select_failed_rows(ledger, ()) == len(asked) + 1
    chosen = ledger.database.execute("SELECT number FROM retried ORDER BY number").fetchall()
    assert [number for (number,) in chosen] == [*asked, ROWS]
    assert select_failed_rows(ledger, ("no_such_code",)) == 0
    ledger.close()


def test_a_second_record_of_an_id_is_refused() -> None:
    with raises(BatchError, "invalid_parameter", naming="row_duplicate"):
        check_retry_codes(["row_duplicate"])


def test_what_was_asked_again_before_a_death_is_not_asked_a_third_time(tmp_path: Path) -> None:
    directory = selected(tmp_path, ("prompt_too_long",))
    ledger = retrial(directory)
    before = ledger.remaining
    ledger.add(again(3))
    ledger.checkpoint()
    ledger.add(again(10))
    die(ledger)
    ledger = retrial(directory)
    assert ledger.remaining == before - 1
    assert ledger.is_done(3)
    assert not ledger.is_done(10)
    ledger.close()
    merged(directory)
    check(directory, ("prompt_too_long",))


def test_lines_of_others_are_not_merged_and_not_lost(tmp_path: Path) -> None:
    directory = selected(tmp_path, ("prompt_too_long",))
    with directory.result_file(RowStatus.ERROR).open("ab") as file:
        file.write(b"mine\n")
    ledger = open_ledger(directory, 0)
    with raises(BatchError, "job_damaged", naming=("errors.jsonl", "5")):
        ledger.recover()
    ledger.close()
    assert lines(directory, RowStatus.ERROR)[-1] == b"mine"


@pytest.mark.parametrize("place", range(1, 12))
@pytest.mark.parametrize("point", ["lines.written", "commit", "committed", "merge.rename", "merge.renamed"])
def test_a_merge_that_is_broken_off_anywhere_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, place: int
) -> None:
    codes = ("prompt_too_long", "row_invalid")
    directory = selected(tmp_path, codes)
    ledger = retrial(directory)
    retry_all(ledger)

    def stop(name: str) -> None:
        raise Died(name)

    monkeypatch.setattr(failpoints, "_REACHED", {})
    monkeypatch.setattr(failpoints, "_ARMED", {point: (place, "kill")})
    monkeypatch.setattr("os.kill", lambda pid, number: stop(point))
    try:
        ledger.merge()
    except Died:
        die(ledger)
    else:
        ledger.close()
    monkeypatch.setattr(failpoints, "_ARMED", {})
    left = open_ledger(directory, 0)
    left.recover()
    if isinstance(left, RetryLedger):
        assert left.remaining == 0
        left.merge()
    left.close()
    check(directory, codes)
