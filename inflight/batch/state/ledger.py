"""What a job has done: every row's outcome exactly once, in its state and in its files of lines."""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.job.counts import Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import Position, RowResult, RowStatus
from inflight.batch.state.database import StateDatabase
from inflight.batch.state.line_file import LineFile, install_merged

PendingLine = tuple[int, str, bytes | None]
"""A row that is done: its number, its status, and its line, unless that is written already."""


_MAX_WRITE_BYTES = 4 << 20
"""Of lines that are written at once: a row that took long may let go of many."""


class Ledger:
    """Takes outcomes from any thread, and makes them last at each checkpoint.

    Lines of answers and errors are written in the order of the rows, dead letters as they come. A checkpoint appends
    the lines, waits for the disk, and then commits, in one transaction, how far the input is done (`next`), what is
    done beyond that, the counts, and how long the files are. Whatever a death leaves behind a file's committed length
    is cut off by `recover`, and those rows are asked again: so each row is asked at least once, and has exactly one
    line.

    Raises BatchError `disk_full`, `job_failed` and `job_damaged`. After one of these nothing is taken any more.
    """

    def __init__(self, directory: JobDirectory, first: int = 0) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._broken: BatchError | None = None
        self._results: list[RowResult] = []
        self._positions: deque[tuple[int, int, Position]] = deque()
        with map_disk_errors(directory.path):
            self.database = StateDatabase(directory.state)
            checkpoint = self.database.get("checkpoint", {})
            self.next: int = checkpoint.get("next", first)
            self.line: int = checkpoint.get("line", 0)
            self.position: Position | None = checkpoint.get("position")
            self._position_number: int = checkpoint.get("place", self.next)
            self.counts = Counts(**checkpoint.get("counts", {}))
            lengths = checkpoint.get("lengths", {})
            self._files = {
                status: LineFile(directory.result_file(status), lengths.get(status, 0)) for status in RowStatus
            }
            self.crash_counts = dict(self.database.execute("SELECT number, deaths FROM suspects").fetchall())
            self._done_out_of_order = {number for (number,) in self.database.execute("SELECT number FROM results")}

    @property
    def start(self) -> tuple[int, Position | None, int]:
        """Where reading begins: a row's number, the position before it, the line; the first of all has no position.

        Rows that are done may come from there on: not every row's position is told in a merge of parts.
        """
        return self._position_number, self.position, self.line

    @property
    def read_position(self) -> tuple[int, Position | None]:
        """How far the input was read: the number behind the last row of it, and the position there."""
        with self._lock:
            return (
                (self._positions[-1][0] + 1, self._positions[-1][2])
                if self._positions
                else (self._position_number, self.position)
            )

    @property
    def out_of_order(self) -> int:
        """How many rows were done at the last checkpoint while one before them was not: they wait in the state."""
        return len(self._done_out_of_order)

    def is_done(self, number: int) -> bool:
        """Whether that row has its outcome."""
        return number < self.next or number in self._done_out_of_order

    def claim_ids(self, rows: Sequence[tuple[str, int]]) -> set[int]:
        """The numbers among these rows, by id and number, whose id an earlier row has."""
        hashed = sorted((hashlib.blake2b(one.encode("utf-8", "surrogatepass"), digest_size=16).digest(), number)
                        for one, number in rows)  # fmt: skip
        return self.claim_hashed(hashed)

    def claim_hashed(self, hashed: Sequence[tuple[bytes, int]]) -> set[int]:
        """The same, for ids as the state's table has them."""
        with self._writing():
            added = self.database.execute_many("INSERT OR IGNORE INTO ids VALUES (?, ?)", hashed)
            if added == len(hashed):
                return set()
            find = "SELECT number FROM ids WHERE id = ?"
            return {number for key, number in hashed if self.database.execute(find, (key,)).fetchone()[0] != number}

    def record_positions(self, positions: Iterable[tuple[int, int, Position]]) -> None:
        """Rows were read: of each its number, its line, and the position behind it."""
        with self._lock:
            self._positions.extend(positions)

    def add(self, result: RowResult) -> None:
        """A row has its outcome; the next checkpoint makes it last. A second outcome of a row is dropped there."""
        self._results.append(result)

    def checkpoint(self, seconds: float = 0.0) -> None:
        """Make all that was added last. `seconds`: how long the job has run since the checkpoint before."""
        with self._writing():
            outcomes, self._results = self._results, []
            new = self._apply(outcomes)
            self._write_ready_lines(new)
            self._advance_position()
            self.counts.seconds += seconds
            self._commit()

    def end_of_input(self, rows: int) -> None:
        """The input was read to its end: the number behind its last row."""
        self.remember("rows", rows)

    def record_crashes(self, number: int, crashes: int) -> None:
        """How many engines died under a row so far."""
        with self._writing():
            self.crash_counts[number] = crashes
            self.database.execute("INSERT OR REPLACE INTO suspects VALUES (?, ?)", (number, crashes))

    def failures(self) -> Iterator[tuple[int, str, str]]:
        """The rows without an answer, by number: number, status, code."""
        yield from self.database.execute("SELECT number, status, code FROM failures ORDER BY number")

    def remember(self, name: str, value: Any) -> None:
        """A fact about the job, at once."""
        with self._writing():
            self.database.put(name, value)
            self._commit()

    def recall(self, name: str, default: Any = None) -> Any:
        with self._lock:
            return self.database.get(name, default)

    def lengths(self) -> dict[RowStatus, int]:
        """How long each file of lines is, as the state has it: this waits for the end of a checkpoint."""
        with self._lock:
            return {status: file.length for status, file in self._files.items()}

    def snapshot(self, path: Path) -> dict[RowStatus, int]:
        """Copy the state into a file of its own; how long the files of lines are that belong to the copy.

        What no commit has seen is committed first: the copy drops it.
        """
        with self._writing():
            self._commit()
            self.database.snapshot(path)
            return self.lengths()

    def recover(self) -> None:
        """Bring the files to where the state is, once it is certain that they are this job's: until then none changes.

        Of a job whose rows are all done nothing is cut: what its files have beyond that is somebody's.
        """
        with self._writing():
            self._finish_merge()
            for file in self._files.values():
                if file.uncommitted_bytes and self.next != self.recall("rows"):
                    file.truncate()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The state to oneself. After a failure it is over: SQLite may have taken back all that no commit has seen, or
        lines may be written by halves, and what came behind would be committed without them.
        """
        with self._lock:
            if self._broken is not None:
                raise self._broken
            try:
                with map_disk_errors(self._directory.path):
                    yield
            except BaseException as error:
                where = self._directory.path
                told = BatchError(f"the job at {where} can't be written after {error!r}; resume it", "job_failed")
                self._broken = error if isinstance(error, BatchError) else told
                raise

    def close(self) -> None:
        """What no checkpoint has seen is lost, and asked again."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self.database.close()

    def _finish_merge(self) -> None:
        """Where a death came between the commit of a merge and the names of its files."""
        if self.database.get("renames", False):
            install_merged([self._directory.result_file(status) for status in RowStatus])
            self.database.put("renames", False)
            self.database.commit()

    def _apply(self, results: list[RowResult]) -> list[PendingLine]:
        """Count them and keep what failed; dead letters are written at once. What is done already is dropped."""
        new: list[PendingLine] = []
        letters: list[bytes] = []
        failed: list[tuple[Any, ...]] = []
        for one in results:
            if self.is_done(one.number):
                continue
            self._done_out_of_order.add(one.number)
            self.counts.add(one)
            if one.status is RowStatus.DEAD:
                letters.append(one.text)
            if one.status is not RowStatus.OK:
                failed.append((one.number, one.line, one.id, one.status, one.code, one.message, one.attempts))
            new.append((one.number, one.status, None if one.status is RowStatus.DEAD else one.text))
        if letters:
            self._files[RowStatus.DEAD].write(letters)
        if failed:
            self.database.execute_many("INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", failed)
        self._clear_suspects(results)
        return sorted(new)

    def _clear_suspects(self, results: list[RowResult]) -> None:
        """Rows that are done are no suspects any more."""
        cleared = [(one.number,) for one in results if self.crash_counts.pop(one.number, None) is not None]
        self.database.execute_many("DELETE FROM suspects WHERE number = ?", cleared)

    def _write_ready_lines(self, new: list[PendingLine]) -> None:
        """Write the lines of all rows up to the first that is not done; keep the rest in the state."""
        stored = self.database.execute("SELECT number, status, text FROM results ORDER BY number")
        lines: dict[str, list[bytes]] = {RowStatus.OK: [], RowStatus.ERROR: []}
        began, held = self.next, 0
        for number, status, text in heapq.merge(stored, new):
            if number != self.next:
                break
            if text is not None:
                lines[status].append(text)
                held += len(text)
                if held >= _MAX_WRITE_BYTES:
                    self._append(lines)
                    held = 0
            self._done_out_of_order.discard(number)
            self.next += 1
        stored.close()
        later = [one for one in new if one[0] >= self.next]
        self.database.execute_many("INSERT INTO results VALUES (?, ?, ?)", later)
        if self.next > began:
            self.database.execute("DELETE FROM results WHERE number < ?", (self.next,))
        self._append(lines)

    def _append(self, lines: dict[str, list[bytes]]) -> None:
        for status, found in lines.items():
            if found:
                self._files[RowStatus(status)].write(found)
                found.clear()

    def _advance_position(self) -> None:
        while self._positions and self._positions[0][0] < self.next:
            number, self.line, self.position = self._positions.popleft()
            self._position_number = number + 1

    def _commit(self) -> None:
        for file in self._files.values():
            file.sync()
        checkpoint = {
            "next": self.next,
            "place": self._position_number,
            "line": self.line,
            "position": self.position,
            "counts": self.counts.as_dict(),
            "lengths": self.lengths(),
        }
        self.database.put("checkpoint", checkpoint)
        self.database.commit()
