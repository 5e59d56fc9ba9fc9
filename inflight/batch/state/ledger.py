"""The durable record of a job's results: every row exactly once, in the state and in the files of lines."""

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

_MAX_WRITE_BYTES = 4 << 20
"""Maximum lines per write: a slow row may release many at once."""


class Ledger:
    """Takes results from any thread, and makes them durable at each checkpoint.

    Lines of answers and errors are written in the order of the rows, dead letters immediately. A checkpoint appends the
    lines, waits for the disk, and then commits, in one transaction, up to which row the input is done (`next`), which
    later rows are done, the counts, and the lengths of the files. If the process dies, `recover` truncates the files to
    their committed lengths, and those rows are sent again: so each row is sent at least once, and has exactly one line.

    Raises BatchError `disk_full`, `job_failed` and `job_damaged`. After one of these nothing more is accepted.
    """

    def __init__(self, directory: JobDirectory, first: int = 0) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._broken: BatchError | None = None
        self._results: list[RowResult] = []
        self._blocks: list[tuple[bytes, int, bytes]] = []
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
        """Return where reading starts: a row's number, the position before it (None for the first row), and the line.

        Some rows after that may be done: a merge of parts does not record every row's position.
        """
        return self._position_number, self.position, self.line

    @property
    def read_position(self) -> tuple[int, Position | None]:
        """Return how far the input was read: the number after the last row, and the position there."""
        with self._lock:
            return (
                (self._positions[-1][0] + 1, self._positions[-1][2])
                if self._positions
                else (self._position_number, self.position)
            )

    @property
    def out_of_order(self) -> int:
        """The number of rows that, at the last checkpoint, were done before an earlier one; they wait in the state."""
        return len(self._done_out_of_order)

    def is_done(self, number: int) -> bool:
        """Return whether that row is done."""
        return number < self.next or number in self._done_out_of_order

    def claim_ids(self, rows: Sequence[tuple[str, int]]) -> set[int]:
        """Return the numbers of those rows (id and number) whose id an earlier row has."""
        hashed = sorted((hashlib.blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=16).digest(), number)
                        for id_, number in rows)  # fmt: skip
        return self.claim_hashed(hashed)

    def claim_hashed(self, hashed: Sequence[tuple[bytes, int]]) -> set[int]:
        """The same, with ids hashed as in the state's table."""
        with self._writing():
            added = self.database.execute_many("INSERT OR IGNORE INTO ids VALUES (?, ?)", hashed)
            if added == len(hashed):
                return set()
            find = "SELECT number FROM ids WHERE id = ?"
            return {number for key, number in hashed if self.database.execute(find, (key,)).fetchone()[0] != number}

    def record_positions(self, positions: Iterable[tuple[int, int, Position]]) -> None:
        """Record rows that were read: for each its number, its line, and the position after it."""
        with self._lock:
            self._positions.extend(positions)

    def add(self, result: RowResult) -> None:
        """Add a row's result; the next checkpoint makes it durable. A second result of a row is dropped there."""
        self._results.append(result)

    def known_blocks(self, key: bytes) -> dict[int, bytes]:
        """Return the blocks of an audio without an answer, by number: those of `add_block`, of earlier runs too."""
        with self._lock:
            stored = self.database.execute("SELECT number, value FROM blocks WHERE key = ?", (key,)).fetchall()
            return dict(stored) | {number: value for each, number, value in self._blocks if each == key}

    def add_block(self, key: bytes, number: int, value: bytes) -> None:
        """Add a block of an audio, for a later run; it is dropped once a row's result names the key."""
        self._blocks.append((key, number, value))

    def checkpoint(self, seconds: float = 0.0) -> None:
        """Make all added results durable. `seconds`: how long the job has run since the last checkpoint."""
        with self._writing():
            outcomes, self._results = self._results, []
            self._store_blocks({result.blocks for result in outcomes} - {b""})
            new = self._apply(outcomes)
            self._write_ready_lines(new)
            self._advance_position()
            self.counts.seconds += seconds
            self._commit()

    def end_of_input(self, rows: int) -> None:
        """Record the end of the input: the number after its last row."""
        self.remember("rows", rows)

    def record_crashes(self, number: int, crashes: int) -> None:
        """Record how many engines have crashed with a row in flight."""
        with self._writing():
            self.crash_counts[number] = crashes
            self.database.execute("INSERT OR REPLACE INTO suspects VALUES (?, ?)", (number, crashes))

    def failures(self) -> Iterator[tuple[int, str, str]]:
        """Yield number, status and code of the rows without an answer, by number."""
        yield from self.database.execute("SELECT number, status, code FROM failures ORDER BY number")

    def remember(self, name: str, value: Any) -> None:
        """Store a value of the job immediately."""
        with self._writing():
            self.database.put(name, value)
            self._commit()

    def recall(self, name: str, default: Any = None) -> Any:
        with self._lock:
            return self.database.get(name, default)

    def lengths(self) -> dict[RowStatus, int]:
        """Return the committed length of each file of lines; waits for the end of a checkpoint."""
        with self._lock:
            return {status: file.length for status, file in self._files.items()}

    def snapshot(self, path: Path) -> dict[RowStatus, int]:
        """Copy the state to a separate file; return the lengths of the files of lines that belong to the copy.

        Uncommitted changes are committed first, because the copy would miss them.
        """
        with self._writing():
            self._commit()
            self.database.snapshot(path)
            return self.lengths()

    def recover(self) -> None:
        """Bring the files to the committed state. Call this once the job is known to be the same; nothing changes
        before.

        If all rows are done, nothing is truncated: additional content was written by someone else.
        """
        with self._writing():
            self._finish_merge()
            for file in self._files.values():
                if file.uncommitted_bytes and self.next != self.recall("rows"):
                    file.truncate()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Yield exclusive access to the state. After a failure, nothing more is written: SQLite may have rolled back
        uncommitted changes, or lines may be partly written, and later changes would be committed without them.
        """
        with self._lock:
            if self._broken is not None:
                raise self._broken
            try:
                with map_disk_errors(self._directory.path):
                    yield
            except BaseException as error:
                where = self._directory.path
                reported = BatchError(f"the job at {where} can't be written after {error!r}; resume it", "job_failed")
                self._broken = error if isinstance(error, BatchError) else reported
                raise

    def close(self) -> None:
        """Close; results since the last checkpoint are lost, and their rows are sent again."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self.database.close()

    def _finish_merge(self) -> None:
        """Rename the files of a merge if the process died between its commit and the renames."""
        if self.database.get("renames", False):
            install_merged([self._directory.result_file(status) for status in RowStatus])
            self.database.put("renames", False)
            self.database.commit()

    def _apply(self, results: list[RowResult]) -> list[RowResult]:
        """Count results and record failures; dead letters are written immediately. Return them without rows that are
        already done."""
        new: list[RowResult] = []
        letters: list[bytes] = []
        failed: list[tuple[Any, ...]] = []
        for result in results:
            if self.is_done(result.number):
                continue
            self._done_out_of_order.add(result.number)
            self.counts.add(result)
            if result.status is RowStatus.DEAD:
                letters.append(result.text)
            if result.status is not RowStatus.OK:
                values = (result.line, result.id, result.status, result.code, result.message, result.attempts)
                failed.append((result.number, *values))
            new.append(result)
        if letters:
            self._files[RowStatus.DEAD].write(letters)
        if failed:
            self.database.execute_many("INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", failed)
        self._clear_suspects(results)
        return new

    def _store_blocks(self, finished: set[bytes]) -> None:
        """Store blocks, but none of audio that is finished."""
        blocks, self._blocks = self._blocks, []
        unfinished = [block for block in blocks if block[0] not in finished]
        self.database.execute_many("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", unfinished)
        self.database.execute_many("DELETE FROM blocks WHERE key = ?", [(key,) for key in finished])

    def _clear_suspects(self, results: list[RowResult]) -> None:
        """Remove finished rows from the suspects."""
        cleared = [(result.number,) for result in results if self.crash_counts.pop(result.number, None) is not None]
        self.database.execute_many("DELETE FROM suspects WHERE number = ?", cleared)

    def _write_ready_lines(self, results: list[RowResult]) -> None:
        """Write the lines of all rows up to the first unfinished one; keep the rest in the state."""
        new = sorted(
            (result.number, result.status, None if result.status is RowStatus.DEAD else result.text)
            for result in results
        )
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
        later = [line for line in new if line[0] >= self.next]
        self.database.execute_many("INSERT INTO results VALUES (?, ?, ?)", later)
        if self.next > began:
            self.database.execute("DELETE FROM results WHERE number < ?", (self.next,))
        self._append(lines)

    def _append(self, lines: dict[str, list[bytes]]) -> None:
        for status, texts in lines.items():
            if texts:
                self._files[RowStatus(status)].write(texts)
                texts.clear()

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
