"""What a job has done survives whatever ends it, and is written down exactly once."""

from __future__ import annotations

import random
import sqlite3
import tracemalloc
from pathlib import Path

import pytest

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.state.ledger import Ledger
from tests.batch.state.ledgers import add, die, directory_at, kind_of, lines, outcome
from tests.fixtures.errors import raises

ROWS = 300


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    return directory_at(tmp_path)


def opened(directory: JobDirectory) -> Ledger:
    """As a resumed process of the job has it."""
    ledger = Ledger(directory)
    ledger.recover()
    return ledger


def expected(kind: RowStatus, rows: int = ROWS) -> list[bytes]:
    return [outcome(number).text for number in range(rows) if kind_of(number) is kind]


@pytest.mark.parametrize("seed", range(5))
def test_each_row_has_one_line_in_order_however_often_it_dies(directory: JobDirectory, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(1000):
        ledger = opened(directory)
        left = [number for number in range(ledger.next, min(ROWS, ledger.next + 80)) if not ledger.is_done(number)]
        if not left:
            break
        ledger.record_positions(
            (number, number + 1, number + 1) for number in range(ledger.next, min(ROWS, ledger.next + 80))
        )
        chance.shuffle(left)
        for number in left[: chance.randrange(1, 60)]:
            ledger.add(outcome(number))
            if chance.random() < 0.1:
                ledger.add(outcome(number))  # twice: the second one belongs to no row
            if chance.random() < 0.2:
                ledger.checkpoint()
        die(ledger)
        for kind in RowStatus:
            if directory.result_file(kind).exists() and chance.random() < 0.5:
                with directory.result_file(kind).open("ab") as file:
                    file.write(b'{"id": "torn')
    assert ledger.next == ROWS == ledger.position
    for kind in (RowStatus.OK, RowStatus.ERROR):
        assert lines(directory, kind) == expected(kind)
    assert sorted(lines(directory, RowStatus.DEAD)) == sorted(expected(RowStatus.DEAD))
    counts = ledger.counts
    assert (counts.ok, counts.error, counts.dead) == tuple(len(expected(kind)) for kind in RowStatus)
    assert counts.done == ROWS == counts.retries
    assert counts.codes == {"prompt_too_long": counts.error, "row_invalid": counts.dead}
    assert [number for number, _, _ in ledger.failures()] == [n for n in range(ROWS) if kind_of(n) is not RowStatus.OK]
    ledger.close()


def test_lines_wait_for_those_before_them_and_dead_letters_do_not(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    add(ledger, (1, 2, 5))
    assert lines(directory, RowStatus.OK) == []
    assert lines(directory, RowStatus.DEAD) == [outcome(5).text]
    add(ledger, [0])
    assert lines(directory, RowStatus.OK) == expected(RowStatus.OK, 3)
    ledger.close()


def test_many_rows_that_waited_for_one_are_written_without_being_held_at_once(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    for number in range(1, 16_001):
        ledger.add(RowResult(number, number + 1, str(number), RowStatus.OK, b"%08d" % number * 250))
        if number % 4000 == 0:
            ledger.checkpoint()
    ledger.add(outcome(0))
    tracemalloc.start()
    ledger.checkpoint()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ledger.close()
    assert most < 24 << 20  # where all lines are 31 MB, and would be held thrice
    written = lines(directory, RowStatus.OK)
    assert len(written) == 16_001
    assert [int(line[:8]) for line in written[1:]] == [*range(1, 16_001)]


def test_ids_are_claimed_once_and_again_by_the_same_row(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    assert ledger.claim_ids([("a", 0), ("b", 1)]) == set()
    assert ledger.claim_ids([("a", 2), ("c", 3), ("c", 4)]) == {2, 4}
    ledger.checkpoint()
    ledger.close()
    ledger = Ledger(directory)
    assert ledger.claim_ids([("c", 3), ("a", 0), ("b", 9)]) == {9}
    ledger.close()


def test_deaths_of_suspects_are_remembered_until_they_are_done(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    ledger.record_crashes(4, 1)
    ledger.record_crashes(4, 2)
    ledger.checkpoint()
    die(ledger)
    ledger = Ledger(directory)
    assert ledger.crash_counts == {4: 2}
    add(ledger, [4])
    ledger.close()
    ledger = Ledger(directory)
    assert ledger.crash_counts == {}
    ledger.close()


@pytest.mark.parametrize("point", ["lines.write", "lines.written", "lines.synced", "commit"])
def test_a_full_disk_loses_nothing(directory: JobDirectory, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    ledger = Ledger(directory)
    add(ledger, range(10))
    monkeypatch.setattr(failpoints, "_REACHED", {})
    monkeypatch.setattr(failpoints, "_ARMED", {point: (1, "full")})
    for number in range(10, 20):
        ledger.add(outcome(number))
    with raises(BatchError, "disk_full"):
        ledger.checkpoint()
    ledger.close()
    monkeypatch.setattr(failpoints, "_ARMED", {})
    ledger = opened(directory)
    assert ledger.next == 10
    add(ledger, range(10, ROWS))
    ledger.close()
    assert lines(directory, RowStatus.OK) == expected(RowStatus.OK)


def test_a_full_disk_in_the_middle_ends_a_ledger_and_what_was_committed_stands(directory: JobDirectory) -> None:
    """SQLite takes back what no commit has seen, also what went well."""
    ledger = Ledger(directory)
    add(ledger, range(10))
    for number in range(10, 20):
        ledger.add(outcome(number))
    (pages,) = ledger.database.execute("PRAGMA page_count").fetchone()
    ledger.database.execute(f"PRAGMA max_page_count = {pages + 4}")
    with raises(BatchError, "disk_full"):
        ledger.claim_ids([(str(number), number) for number in range(ROWS, 100 * ROWS)])
    for call in (
        ledger.checkpoint,
        lambda: ledger.claim_ids([("a", ROWS)]),
        lambda: ledger.record_crashes(15, 1),
        lambda: ledger.remember("rows", 20),
        lambda: ledger.snapshot(directory.path / "copy.db"),
    ):
        with raises(BatchError, "disk_full"):
            call()
    with pytest.raises(sqlite3.OperationalError, match="were rolled back"):
        ledger.database.put("finished", True)
    ledger.close()
    ledger = opened(directory)
    assert (ledger.next, ledger.recall("rows"), ledger.recall("finished")) == (10, None, None)
    assert ledger.claim_ids([(str(number), number) for number in range(ROWS)]) == set()
    add(ledger, range(10, ROWS))
    ledger.close()
    assert lines(directory, RowStatus.OK) == expected(RowStatus.OK)


def test_a_file_that_was_shortened_is_told(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    add(ledger, range(10))
    ledger.close()
    directory.result_file(RowStatus.OK).write_bytes(b"")
    with raises(BatchError, "job_damaged", naming="0"):
        opened(directory)


def test_nothing_is_cut_before_it_is_certain_whose_it_is(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    add(ledger, [0])
    ledger.close()
    with directory.result_file(RowStatus.OK).open("ab") as file:
        file.write(b'{"id": "torn')
    ledger = Ledger(directory)
    assert ledger.recall("created") is None
    ledger.close()
    assert lines(directory, RowStatus.OK) == [outcome(0).text, b'{"id": "torn']
    opened(directory).close()
    assert lines(directory, RowStatus.OK) == [outcome(0).text]


def test_a_file_that_somebody_has_made_meanwhile_is_left_alone(directory: JobDirectory) -> None:
    ledger = opened(directory)
    directory.result_file(RowStatus.OK).write_bytes(b"theirs\n")
    ledger.add(outcome(0))
    with raises(BatchError, "output_exists", naming="answers.jsonl"):
        ledger.checkpoint()
    ledger.close()
    assert directory.result_file(RowStatus.OK).read_bytes() == b"theirs\n"


def test_what_is_added_to_the_file_of_a_job_at_its_end_stays(directory: JobDirectory) -> None:
    ledger = Ledger(directory)
    add(ledger, [0])
    ledger.remember("rows", 1)
    ledger.close()
    with directory.result_file(RowStatus.OK).open("ab") as file:
        file.write(b"mine\n")
    opened(directory).close()
    assert lines(directory, RowStatus.OK) == [outcome(0).text, b"mine"]


def test_a_state_that_is_none_is_told(directory: JobDirectory) -> None:
    directory.state.write_bytes(b"not a database, though it is long enough to be looked at" * 20)
    with raises(BatchError, "job_damaged", naming="state.db"):
        Ledger(directory)


def test_a_state_of_another_format_is_told(directory: JobDirectory) -> None:
    Ledger(directory).close()
    with sqlite3.connect(directory.state) as database:
        database.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    database.close()
    with raises(BatchError, "job_damaged", naming="99"):
        Ledger(directory)
