"""The batches that applications create (`/v1/batches`): one JSON record each, and the states that it may have."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inflight_client import InflightError

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.progress import read_progress
from inflight.common.atomic_files import open_private
from inflight.gateway.batches import ENDPOINTS
from inflight.gateway.batches.entries import (
    NewEntry,
    all_entries,
    check_limit,
    entries,
    is_id,
    map_disk_errors,
    new_id,
    page,
    private_directory,
    read_record,
    remove_entry,
    remove_leftovers,
    shown_id,
    tenant_folder,
    write_record,
)
from inflight.gateway.batches.files import BATCH_FILE_SECONDS, FileStore, expiry_seconds

COMPLETION_WINDOW = "24h"
WINDOW_SECONDS = 86_400
MAX_LISTED = 100
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_PREFIX = "batch_"
_RECORD, _LOCK = "batch.json", "lock"
_COUNTS = frozenset(("total", "completed", "failed"))

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
    are those that its API key may use, all if empty.
    """

    path: Path
    tenant: str
    order: int
    batch: Mapping[str, Any]
    ending: Ending
    output_seconds: int
    models: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        status: str = self.batch["status"]
        return status

    @property
    def ended(self) -> bool:
        return self.status not in _NEXT


class BatchStore:
    """Batches by tenant, in `root`. A tenant has access to its own batches only.

    Safe for several threads and processes: each change of a batch is made under the batch's lock, and only from a state
    that allows it. All methods raise InflightError: `batch_not_found`, `batch_ended`, `file_not_found`,
    `invalid_parameter`, `disk_full`, `output_unwritable`, and `job_damaged` for a batch whose record is unreadable.
    """

    def __init__(self, root: Path, files: FileStore, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self.root = root.absolute()
        self._files, self._window_seconds = files, window_seconds
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
    ) -> dict[str, Any]:
        """Create a batch, in state `validating`; return its object. `models` are those that the API key may use."""
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
        record = {
            "order": time.time_ns(),
            "tenant": tenant,
            "ending": "completed",
            "output_seconds": output_seconds,
            "models": sorted(models),
            "batch": batch,
        }
        with map_disk_errors("the batch"):
            entry = NewEntry(tenant_folder(self.root, tenant))
            try:
                self._files.link_content(tenant, input_file_id, input_path(entry.path))
                write_record(entry.path / _RECORD, record)
                entry.commit(batch_id)
            finally:
                entry.discard()
        return batch

    def get(self, tenant: str, batch_id: str) -> dict[str, Any]:
        """Return the `batch` object. While its job runs, the counts are those of the job's progress."""
        try:
            return _with_progress(self.read(self._path(tenant, batch_id)))
        except FileNotFoundError:
            raise _not_found(batch_id) from None

    def list(self, tenant: str, after: str | None = None, limit: int = 20) -> dict[str, Any]:
        """Return a page of the tenant's batches, the newest first."""
        limit = check_limit(limit, MAX_LISTED)
        records: dict[str, BatchRecord] = {}
        for path in entries(tenant_folder(self.root, tenant)):
            try:
                records[path.name] = self.read(path)
            except (FileNotFoundError, InflightError):  # damaged: `get` says so
                continue
        found = page([(one.order, dict(one.batch)) for one in records.values()], after, limit, "desc")
        found["data"] = [_with_progress(records[one["id"]]) for one in found["data"]]
        return found

    def cancel(self, tenant: str, batch_id: str) -> dict[str, Any]:
        """Begin to cancel a batch; return its object. Raises InflightError `batch_ended` if that is too late.

        A batch that is cancelled already is returned as it is.
        """
        path = self._path(tenant, batch_id)
        try:
            self.transition(path, "cancelling")
            record = self.read(path)
        except FileNotFoundError:
            raise _not_found(batch_id) from None
        if record.status not in _CANCELLED:
            raise InflightError(
                f"the batch {batch_id} is {record.status} and can't be cancelled; retrieve it", "batch_ended"
            )
        return _with_progress(record)

    def paths(self) -> Iterator[Path]:
        """Yield the directories of the batches of all tenants."""
        yield from all_entries(self.root)

    def sweep(self) -> None:
        """Remove batches that ended so long ago that their files have expired, and what processes that died were about
        to create."""
        remove_leftovers(self.root)
        for path in self.paths():
            with suppress(FileNotFoundError, InflightError):
                if time.time() - path.stat().st_mtime > BATCH_FILE_SECONDS and self.read(path).ended:
                    remove_entry(path)

    def read(self, path: Path) -> BatchRecord:
        """Read the batch in a directory. Raises FileNotFoundError, and InflightError `job_damaged`."""
        record = read_record(path / _RECORD, "batch", _FIELDS)
        try:
            found = BatchRecord(
                path,
                record["tenant"],
                record["order"],
                record["batch"],
                record["ending"],
                record["output_seconds"],
                tuple(record.get("models", ())),
            )
            batch = found.batch
            known = found.status in STATES and batch["id"] == path.name and type(batch["expires_at"]) is int
            known = known and isinstance(found.tenant, str) and batch["request_counts"].keys() >= _COUNTS
        except (AttributeError, KeyError, TypeError):
            known = False
        if not known:
            raise InflightError(f"the record of {path.name} is damaged; delete it, or restore it", "job_damaged")
        return found

    def is_expired(self, record: BatchRecord) -> bool:
        """Return whether the completion window is over."""
        return bool(time.time() >= record.batch["expires_at"])

    def transition(self, path: Path, status: str, *, ending: Ending = "completed", **fields: Any) -> bool:
        """Change the state and these fields durably; return False if the current state does not allow it.

        `ending` is the state that will follow, for `finalizing`. Raises FileNotFoundError and InflightError.
        """
        if not path.is_dir():
            raise FileNotFoundError(path)
        with map_disk_errors(f"the batch {path.name}"), _locked(path):
            current = self.read(path)
            if status not in _NEXT.get(current.status, ()):
                return False
            if current.status == "finalizing" and status != current.ending:
                return False
            record = read_record(path / _RECORD, "batch", _FIELDS)
            record["batch"] |= {**fields, "status": status, f"{status}_at": int(time.time())}
            if status == "finalizing":
                record["ending"] = ending
            write_record(path / _RECORD, record)
        return True

    def _path(self, tenant: str, batch_id: str) -> Path:
        if not is_id(batch_id, _PREFIX):
            raise _not_found(batch_id)
        return tenant_folder(self.root, tenant) / batch_id


def input_path(path: Path) -> Path:
    """Return the input in the directory of a batch."""
    return path / "input.jsonl"


def job_directory(path: Path) -> JobDirectory:
    """Return the job in the directory of a batch."""
    return JobDirectory(path / "job")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = open_private(str(path / _LOCK), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


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
    return {"object": "list", "data": [dict(one) for one in errors]}


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


_FIELDS = frozenset(_new_batch("", "", "", None, 0, 0))


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
    return value.isascii() or not any("\ud800" <= one <= "\udfff" for one in value)


def _not_found(batch_id: object) -> InflightError:
    return InflightError(f"there is no batch {shown_id(batch_id)}; check its id", "batch_not_found")
