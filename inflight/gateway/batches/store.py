"""The batches that applications create (`/v1/batches`), and the states that each may have."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from inflight_client import InflightError

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.progress import read_progress
from inflight.gateway.batches import ENDPOINTS
from inflight.gateway.batches.database import (
    Database,
    is_id,
    list_object,
    map_disk_errors,
    new_id,
    private_directory,
    remove,
    shown_id,
    tenant_key,
)
from inflight.gateway.batches.files import BATCH_FILE_SECONDS, FileStore, expiry_seconds

COMPLETION_WINDOW = "24h"
WINDOW_SECONDS = 86_400
MAX_LISTED = 100
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_PREFIX = "batch_"

Ending = Literal["completed", "expired", "failed"]

_NEXT: dict[str, tuple[str, ...]] = {
    "validating": ("failed", "in_progress", "cancelling"),
    "in_progress": ("finalizing", "cancelling"),
    "finalizing": ("completed", "expired", "failed"),
    "cancelling": ("cancelled",),
}
"""The states after each one; those that are missing are final."""
STATES = (*_NEXT, "completed", "expired", "failed", "cancelled")
_CANCELLED = ("cancelling", "cancelled")


@dataclass(frozen=True)
class BatchRecord:
    """A batch on the disk. `path` is its directory, with its input and its job.

    `ending` is the state that follows `finalizing`; `output_seconds` is how long its output files are kept; `models`
    are those that its API key may use, all if empty; `key` is that key's id, "" if there is none.
    """

    path: Path
    tenant: str
    order: int
    batch: Mapping[str, Any]
    ending: Ending
    output_seconds: int
    models: tuple[str, ...] = ()
    key: str = ""

    @property
    def status(self) -> str:
        status: str = self.batch["status"]
        return status

    @property
    def ended(self) -> bool:
        return self.status not in _NEXT


class BatchStore:
    """Batches by tenant, with a directory each in `root`. A tenant has access to its own batches only.

    Safe for several threads and processes: each change of a batch is a transaction, and made only from a state that
    allows it. All methods raise InflightError: `batch_not_found`, `batch_ended`, `file_not_found`,
    `invalid_parameter`, `disk_full`, `output_unwritable`, and `job_damaged` if the database is.
    """

    def __init__(self, database: Database, files: FileStore, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self.root = database.root / "batches"
        self._database, self._files, self._window_seconds = database, files, window_seconds
        with map_disk_errors("the directory of the batches"):
            private_directory(self.root)

    def create(
        self,
        tenant: str,
        input_file_id: str,
        endpoint: str,
        completion_window: str,
        metadata: Mapping[str, str] | None = None,
        output_expires_after: Mapping[str, Any] | None = None,
        models: Collection[str] = (),
        key: str = "",
    ) -> dict[str, Any]:
        """Create a batch, in state `validating`; return its object. `models`: those that the API key `key` may use."""
        if endpoint not in ENDPOINTS:
            raise InflightError(
                f"endpoint is {shown_id(endpoint)}; it must be one of {', '.join(ENDPOINTS)}", "invalid_parameter"
            )
        if completion_window != COMPLETION_WINDOW:
            raise InflightError(
                f"completion_window is {shown_id(completion_window)}; it must be {COMPLETION_WINDOW!r}",
                "invalid_parameter",
            )
        _check_metadata(metadata)
        output_seconds = expiry_seconds(output_expires_after, "output_expires_after") or BATCH_FILE_SECONDS
        file = self._files.get(tenant, input_file_id)
        if file["purpose"] != "batch":
            raise InflightError(
                f"the file {input_file_id} has purpose {file['purpose']!r}; upload it with purpose 'batch'",
                "invalid_parameter",
            )
        batch_id, now = new_id(_PREFIX), time.time()
        batch = _new_batch(batch_id, input_file_id, endpoint, metadata, int(now), int(now + self._window_seconds))
        path, owner = self.root / batch_id, tenant_key(tenant)
        allowed = orjson.dumps(sorted(models)).decode()
        try:
            with map_disk_errors("the batch"):
                private_directory(path)
                self._files.link_content(tenant, input_file_id, input_path(path))
            with self._database.change("the batch") as connection:
                connection.execute(
                    "INSERT INTO batches"
                    " (id, tenant, models, output_seconds, status, ending, batch, changed_at, open, key)"
                    " VALUES (?, ?, ?, ?, 'validating', 'completed', ?, ?, 1, ?)",
                    (batch_id, owner, allowed, output_seconds, orjson.dumps(batch).decode(), now, key),
                )
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return batch

    def get(self, tenant: str, batch_id: str) -> dict[str, Any]:
        """Return the `batch` object. While its job runs, the counts are those of the job's progress."""
        return _with_progress(self._own(tenant, batch_id))

    def list(self, tenant: str, after: str | None = None, limit: int = 20) -> dict[str, Any]:
        """Return a page of the tenant's batches, the newest first."""
        own = ("batches", "tenant = ?", (tenant_key(tenant),))
        rows, has_more = self._database.page(*own, after, limit, MAX_LISTED, "desc")
        return list_object([_with_progress(self._record(row)) for row in rows], has_more)

    def cancel(self, tenant: str, batch_id: str) -> dict[str, Any]:
        """Begin to cancel a batch; return its object. Raises InflightError `batch_ended` if that is too late.

        A batch that is cancelled already is returned as it is.
        """
        self.transition(self._own(tenant, batch_id).path, "cancelling")
        record = self._own(tenant, batch_id)
        if record.status not in _CANCELLED:
            raise InflightError(
                f"the batch {batch_id} is {record.status} and can't be cancelled; retrieve it", "batch_ended"
            )
        return _with_progress(record)

    def open_batches(self) -> Sequence[BatchRecord]:
        """Return the batches of all tenants that were not closed, the oldest first."""
        return [self._record(row) for row in self._database.read("SELECT * FROM batches WHERE open ORDER BY number")]

    def close(self, path: Path) -> None:
        """Note that nothing is left to do for the batch in this directory."""
        with self._database.change(f"the batch {path.name}") as connection:
            connection.execute("UPDATE batches SET open = 0 WHERE id = ?", (path.name,))

    def sweep(self) -> None:
        """Remove batches that ended so long ago that their files have expired, and what processes that died were about
        to create."""
        expired = (time.time() - BATCH_FILE_SECONDS,)
        old = self._database.read("SELECT id FROM batches WHERE NOT open AND changed_at < ?", expired)
        with self._database.change("the list of the batches") as connection:
            connection.executemany("DELETE FROM batches WHERE id = ?", [(row["id"],) for row in old])
        for row in old:
            remove(self.root / row["id"])
        self._database.remove_leftovers("batches", self.root)

    def read(self, path: Path) -> BatchRecord:
        """Read the batch in a directory. Raises FileNotFoundError."""
        rows = self._database.read("SELECT * FROM batches WHERE id = ?", (path.name,))
        if not rows:
            raise FileNotFoundError(path)
        return self._record(rows[0])

    def is_expired(self, record: BatchRecord) -> bool:
        """Return whether the completion window is over."""
        return bool(time.time() >= record.batch["expires_at"])

    def transition(self, path: Path, status: str, *, ending: Ending = "completed", **fields: Any) -> bool:
        """Change the state and these fields durably; return False if the current state does not allow it.

        `ending` is the state that will follow, for `finalizing`. Raises FileNotFoundError and InflightError.
        """
        with self._database.change(f"the batch {path.name}") as connection:
            current = self.read(path)
            if status not in _NEXT.get(current.status, ()):
                return False
            if current.status == "finalizing" and status != current.ending:
                return False
            batch = {**current.batch, **fields, "status": status, f"{status}_at": int(time.time())}
            connection.execute(
                "UPDATE batches SET status = ?, ending = ?, batch = ?, changed_at = ? WHERE id = ?",
                (
                    status,
                    ending if status == "finalizing" else current.ending,
                    orjson.dumps(batch).decode(),
                    time.time(),
                    path.name,
                ),
            )
        return True

    def _own(self, tenant: str, batch_id: str) -> BatchRecord:
        query = "SELECT * FROM batches WHERE tenant = ? AND id = ?"
        rows = self._database.read(query, (tenant_key(tenant), batch_id)) if is_id(batch_id, _PREFIX) else []
        if not rows:
            raise InflightError(f"there is no batch {shown_id(batch_id)}; check its id", "batch_not_found")
        return self._record(rows[0])

    def _record(self, row: sqlite3.Row) -> BatchRecord:
        return BatchRecord(
            self.root / row["id"],
            row["tenant"].decode("utf-8", "surrogatepass"),
            row["number"],
            orjson.loads(row["batch"]),
            row["ending"],
            row["output_seconds"],
            tuple(orjson.loads(row["models"])),
            row["key"],
        )


def input_path(path: Path) -> Path:
    """Return the input in the directory of a batch."""
    return path / "input.jsonl"


def job_directory(path: Path) -> JobDirectory:
    """Return the job in the directory of a batch."""
    return JobDirectory(path / "job")


def _with_progress(record: BatchRecord) -> dict[str, Any]:
    batch = dict(record.batch)
    if record.status not in ("in_progress", "finalizing", "cancelling"):
        return batch
    progress = read_progress(job_directory(record.path))
    if progress is not None:
        counts = progress.counts
        total = batch["request_counts"]["total"]
        batch["request_counts"] = {
            "total": total,
            "completed": min(counts.ok, total),
            "failed": min(counts.error + counts.dead, total),
        }
        batch["usage"] = usage(counts.input_tokens, counts.output_tokens)
    return batch


def usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Return the `usage` of a batch."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def error_list(errors: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the `errors` of a batch."""
    return {"object": "list", "data": [dict(error) for error in errors]}


def _new_batch(
    batch_id: str, file_id: str, endpoint: str, metadata: Mapping[str, str] | None, now: int, expires_at: int
) -> dict[str, Any]:
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": batch_id,
        "object": "batch",
        "endpoint": endpoint,
        "model": None,
        "errors": None,
        "input_file_id": file_id,
        "completion_window": COMPLETION_WINDOW,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": expires_at,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": None,
        "metadata": None if metadata is None else dict(metadata),
    }


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping) or len(metadata) > _MAX_PAIRS:
        raise InflightError(f"metadata must be an object of at most {_MAX_PAIRS} pairs", "invalid_parameter")
    for key, value in metadata.items():
        if not _is_text(key, _MAX_KEY) or not _is_text(value, _MAX_VALUE):
            raise InflightError(
                f"metadata has the pair {shown_id(key)}: {shown_id(value)}; a key is a text of at most {_MAX_KEY} "
                f"characters, a value one of at most {_MAX_VALUE}",
                "invalid_parameter",
            )


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or len(value) > longest:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
