"""The ledger of a job whose rows are messages of a queue: in the order in which they are done, with a bounded state."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import Position, RowResult, RowStatus
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.line_file import LineFile
from inflight.common.atomic_files import install

_TABLE = """
-- messages with a record, by the hash of their id; `recorded` in seconds since 1970
CREATE TABLE IF NOT EXISTS messages(id TEXT PRIMARY KEY, status TEXT NOT NULL, recorded INTEGER NOT NULL) WITHOUT ROWID
"""
DEATHS_TOGETHER = 2
"""Deaths of workers with a group of messages until each is tried alone."""
_FORGET_SECONDS = 10.0
"""Seconds between two times that old messages are forgotten."""


class QueueLedger(Ledger):
    """Numbers are those of this run's messages, after those of the records of all runs; each run has other messages.

    The state keeps nothing of a message but its id, and that for a limited time. Lines are written as they come; those
    of errors and dead letters have the message too, unless it stays in the queue. `seal` gives the files of lines names
    of their own, and the next lines go to new files.
    """

    def __init__(self, directory: JobDirectory) -> None:
        super().__init__(directory)
        self.database.execute(_TABLE)
        self.database.execute("DELETE FROM suspects")  # the queue counts deliveries, and numbers are of one run
        self.crash_counts.clear()
        self._deaths: dict[str, int] = self.database.get("deaths", {})
        self._messages: dict[int, tuple[str, bytes | str | None]] = {}
        self._recorded: dict[str, RowStatus] = {}
        self._forgotten_at = 0.0
        self._apart: Sequence[str] = ()

    @property
    def read_position(self) -> tuple[int, Position | None]:
        return self.next, self.next

    def add_message(self, number: int, id: str, body: bytes | str | None) -> None:
        """Add a message before its row's result; `body` is what its record has of it if it fails."""
        self._messages[number] = id, body

    def known(self, ids: Sequence[str]) -> dict[str, RowStatus]:
        """Return those of the messages whose records are on the disk, with their status."""
        find = "SELECT status FROM messages WHERE id = ?"
        with self._writing():  # nothing, once a checkpoint has failed
            found = {id: self.database.execute(find, (_hash(id),)).fetchone() for id in ids}
        return {id: RowStatus(row[0]) for id, row in found.items() if row is not None}

    def deaths(self, id: str) -> int:
        """Return how many processes died while they had this message apart from others. Those that had it alone come
        after `DEATHS_TOGETHER`."""
        return self._deaths.get(_hash(id), 0)

    def try_apart(self, ids: Sequence[str]) -> None:
        """Record that this process has these messages and no others, as if it died with them; that is corrected for
        those that get a record, with the next call, and when it closes the ledger."""
        before, self._apart = self._apart, ids
        if not (before or ids):
            return
        with self._writing():
            self._deaths |= {_hash(id): self.deaths(id) - 1 for id in before if self.deaths(id)}
            least = DEATHS_TOGETHER if len(ids) == 1 else 0
            self._deaths |= {_hash(id): max(self.deaths(id), least) + 1 for id in ids}
            self.remember("deaths", self._deaths)
        if ids:
            failpoint("messages.apart")

    def close(self) -> None:
        with suppress(BatchError):  # of a ledger that can't be written
            self.try_apart(())
        super().close()

    def take_recorded(self) -> dict[str, RowStatus]:
        """Return the messages that were recorded by the checkpoints since the last call."""
        with self._writing():
            recorded, self._recorded = self._recorded, {}
            return recorded

    def forget(self, seconds: float) -> None:
        """Forget the messages that were recorded longer ago than that; look for them only now and then."""
        if time.monotonic() - self._forgotten_at >= _FORGET_SECONDS:
            self._forgotten_at = time.monotonic()
            with self._writing():
                self.database.execute("DELETE FROM messages WHERE recorded < ?", (time.time() - seconds,))

    def seal(self, rows: int = 1, seconds: float = 0.0, *, discard: bool = False) -> None:
        """Seal the segment if it has so many rows, or is so old and not empty. Without answers if they are to be
        discarded, since a table has them. A process that starts completes the renames of one that died."""
        sealed, since = self.recall("sealed", (0, self.recall("created", 0)))
        done = self.next - sealed
        if not done or (done < rows and time.time() - since < seconds):
            return
        with self._writing():
            delivered: int = self.database.get("delivered", 0)
            if discard and delivered != self._files[RowStatus.OK].length:
                return
            number = int(self.database.get("segment", 0)) + 1
            while any(self._segment(status, number).exists() for status in RowStatus):  # of a job before this one
                number += 1
            for status, file in self._files.items():
                file.close()
                self._files[status] = LineFile(file.path, 0)
            self.database.put("segment", number)
            self.database.put("sealed", (self.next, time.time()))
            self.database.put("delivered", 0)
            self.remember("sealing", (number, discard))
            self._finish_sealing()

    def recover(self) -> None:
        with self._writing():
            self._finish_sealing()
        super().recover()

    def _finish_sealing(self) -> None:
        number, discard = self.database.get("sealing") or (0, False)
        if not number:
            return
        for status in RowStatus:
            path = self._directory.result_file(status)
            if discard and status is RowStatus.OK:
                path.unlink(missing_ok=True)
            elif path.exists():
                install(
                    path,
                    self._segment(status, number),
                    before_rename=lambda: failpoint("segment.rename"),
                    after_rename=lambda: failpoint("segment.renamed"),
                )
        self.remember("sealing", None)

    def _segment(self, status: RowStatus, number: int) -> Path:
        path = self._directory.result_file(status)
        return path.with_name(f"{path.stem}.{number:06}{path.suffix}")

    def _apply(self, results: list[RowResult]) -> list[RowResult]:
        now = int(time.time())
        results = [result for result in results if result.number in self._messages]
        messages = [self._messages.pop(result.number) for result in results]
        recorded = {id: result.status for (id, _), result in zip(messages, results, strict=True)}
        rows = [(_hash(id), status, now) for id, status in recorded.items()]
        self.database.execute_many("INSERT OR REPLACE INTO messages VALUES (?, ?, ?)", rows)
        if [id for id in recorded if self._deaths.pop(_hash(id), None) is not None]:
            self.database.put("deaths", self._deaths)
        for result in results:
            self.counts.add(result)
        self._clear_suspects(results)
        self._recorded |= recorded
        return [_with_body(result, body) for (_, body), result in zip(messages, results, strict=True)]

    def _write_ready_lines(self, results: list[RowResult]) -> None:
        lines: dict[str, list[bytes]] = {status: [] for status in RowStatus}
        for result in results:
            lines[result.status].append(result.text)
        self._append(lines)
        self.next += len(results)


def _with_body(result: RowResult, body: bytes | str | None) -> RowResult:
    """Return a result; the record of a failed message has its body, by which it can be sent again."""
    if result.status is RowStatus.OK or body is None:
        return result
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    try:
        more = {"message_body": raw.decode()}
    except UnicodeDecodeError:
        more = {"message_body_hex": raw.hex()}
    return replace(result, text=result.text[:-1] + b"," + orjson.dumps(more)[1:])


def _hash(id: str) -> str:
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
