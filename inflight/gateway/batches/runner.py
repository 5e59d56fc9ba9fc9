"""Runs the batches of a store: one process each, from validation to the output files."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inflight_client import InflightError
from pydantic import ValidationError

from inflight.batch.job.spec import GenerationDefaults, RunOptions
from inflight.common.atomic_files import open_private
from inflight.common.child_process import kill_group, python_module
from inflight.gateway.audit.chain import AuditOptions
from inflight.gateway.batches.database import map_disk_errors
from inflight.gateway.batches.files import FileStore
from inflight.gateway.batches.job_process import MODULE, Outcome, Task
from inflight.gateway.batches.models import BatchModel
from inflight.gateway.batches.results import publish_results, remove_job
from inflight.gateway.batches.row_gate import write_share
from inflight.gateway.batches.store import BatchRecord, BatchStore, error_list, job_directory
from inflight.gateway.batches.validation import Validation, read_validation

_POLL_SECONDS = 0.3
_SWEEP_SECONDS = 300.0
_VALIDATION_SECONDS = 900.0
"""Within which an input file must be checked."""
_MAX_TENANTS_RUNNING = 8
"""Batches at a time, if each is the only one of its tenant that runs."""
_CANCEL_SECONDS = 10.0
"""Seconds that a job has to end by itself before it is killed, which loses nothing but the work in flight."""
_BACKOFF_SECONDS = (1.0, 60.0)
"""Seconds until a job that stopped is continued: the first time, and at most."""


class BatchRunner:
    """Runs the batches of all tenants, at most `max_running` at a time, in a thread with one process per batch.

    Several runners may be started over one store, in one process or several; one of them runs batches, and another
    takes over when it ends. `servers` are Triton's gRPC addresses, as for `inflight batch run --server`;
    `run_options` and `defaults` are the job's other options. `models` returns the models for an endpoint, or None
    while they are unknown; None: any model. `accounts` are the key file and the ledger of the keys' quotas.
    `audit` is where rows have their lines, `routes` the file with their checks. `on_message` gets sentences for the
    operator.
    """

    def __init__(
        self,
        store: BatchStore,
        files: FileStore,
        servers: Sequence[str],
        *,
        max_running: int = 2,
        run_options: RunOptions | None = None,
        defaults: GenerationDefaults | None = None,
        models: Callable[[str], Mapping[str, BatchModel] | None] | None = None,
        accounts: tuple[Path, Path] | None = None,
        audit: AuditOptions | None = None,
        routes: Path | None = None,
        on_message: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._store, self._files, self._max_running = store, files, max_running
        self._options = (run_options or RunOptions()).model_copy(update={"servers": tuple(servers)})
        self._defaults = defaults or GenerationDefaults(generation_config="model")
        self._models = models
        self._accounts, self._audit, self._routes = accounts or (None, None), audit, routes
        self._on_message = on_message
        self._children: dict[Path, _Child] = {}
        self._retries: dict[tuple[Path, bool], _Retry] = {}
        """By batch, and whether its rows are being closed: a batch that waits for a server is cancelled at once."""
        self._reported: dict[Path, str] = {}
        self._next_sweep = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.active = False
        """Whether this runner is the one that runs batches."""

    def start(self) -> None:
        """Start the thread. Call it once, in the process that is to run batches."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="batch-runner", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Stop the jobs, which have so many seconds to finish requests in flight, and the thread; another runner, or
        the next start, continues."""
        if self._thread is not None:
            self._stop_seconds = seconds
            self._stopping.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        lock = -1
        try:
            while not self._stopping.wait(_POLL_SECONDS):
                try:
                    if lock < 0:
                        with map_disk_errors("the lock of the batches"):
                            path = self._store.root.with_name("batch-runner.lock")
                            lock = open_private(str(path), os.O_RDWR | os.O_CREAT)
                    if not self.active:
                        self.active = _try_lock(lock)
                    if self.active:
                        self._step()
                except (InflightError, OSError) as error:
                    self._report(self._store.root, f"the batches wait: {error}")
        finally:
            self._stop_children()
            self.active = False
            if lock >= 0:
                os.close(lock)

    def _step(self) -> None:
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._files.sweep()
            self._store.sweep()
        for record in self._in_turn(self._store.open_batches()):
            try:
                self._advance(record)
            except Exception as error:  # one batch must not stop the others
                why = str(error) if isinstance(error, InflightError | OSError) else repr(error)
                self._postpone(record, why)
        self._share_servers()

    def _share_servers(self) -> None:
        """Tenants share the servers evenly, and so do the running batches of one."""
        running = {path: child for path, child in self._children.items() if not child.closing}
        batches = Counter(child.tenant for child in running.values())
        for path, child in running.items():
            share = 1 / len(batches) / batches[child.tenant]
            if child.share != share:
                write_share(path, share)
                child.share = share

    def _in_turn(self, records: Sequence[BatchRecord]) -> list[BatchRecord]:
        """Return the batches in the order in which they may start: first those of tenants of which the fewest run."""
        running = Counter(record.tenant for record in records if record.path in self._children)
        return sorted(records, key=lambda record: (running[record.tenant], record.order))

    def _advance(self, record: BatchRecord) -> None:
        """Take the next step of a batch. All that it needs is on the disk, so any runner can take it."""
        path = record.path
        if record.ended:
            self._end_child(path)
            remove_job(path)
            self._store.close(path)
            self._reported.pop(path, None)
            for closing in (False, True):
                self._retries.pop((path, closing), None)
            return
        if record.status == "validating" and (validation := read_validation(path)) is not None:
            self._store.transition(path, *_after(validation), **_fields(validation))
            record = self._store.read(path)
        if record.status in ("validating", "in_progress") and self._store.is_expired(record):
            if record.status == "validating":
                self._store.transition(path, "in_progress")
            self._store.transition(path, "finalizing", ending="expired")
            record = self._store.read(path)
        child = self._children.get(path)
        if child is not None:
            if record.status == "validating" and time.monotonic() - child.began > _VALIDATION_SECONDS:
                self._end_child(path)
                error = {"code": "validation_timeout", "message": _SAID_SLOW, "line": None, "param": None}
                self._store.transition(path, "failed", errors=error_list([error]))
                return
            if (outcome := child.outcome()) is None:
                if record.status not in ("validating", "in_progress") and not child.closing:
                    child.end(path)
                return
            del self._children[path]
            self._on_outcome(record, child, outcome)
        elif record.ended or not self._is_due(record):
            return
        elif record.status == "finalizing" and record.ending == "completed":
            self._finish(record)
        elif self._may_start(record):
            self._start(record)

    def _may_start(self, record: BatchRecord) -> bool:
        """Rows are closed at once, without a server, so that a cancelled batch does not wait for the others."""
        closing = _is_closing(record)
        running = [child for child in self._children.values() if child.closing is closing]
        own = sum(child.tenant == record.tenant for child in running)
        # A tenant's first batch does not wait for the batches of others, as long as the machine has room.
        if len(running) >= (self._max_running if own else _MAX_TENANTS_RUNNING):
            return False
        return closing or self._models is None or self._knows_model(record)

    def _knows_model(self, record: BatchRecord) -> bool:
        """Return whether servers are known that may answer the batch; until then it waits."""
        permitted = self._permitted(record)
        model = record.batch.get("model")
        served = permitted is not None and (model is None or model in permitted)
        if not served:
            self._report(record.path, f"the batch {record.path.name} waits: no server of its model is ready")
        return served

    def _is_due(self, record: BatchRecord) -> bool:
        retry = self._retries.get((record.path, _is_closing(record)))
        return retry is None or time.monotonic() >= retry.at

    def _postpone(self, record: BatchRecord, why: str) -> None:
        """Continue the batch later, and later each time."""
        self._retries.setdefault((record.path, _is_closing(record)), _Retry()).postpone()
        if why:
            self._report(record.path, f"the batch {record.path.name} waits: {why}")

    def _start(self, record: BatchRecord) -> None:
        closing = {"in_progress": None, "validating": None, "cancelling": "cancelled"}.get(
            record.status, "job_expired" if record.ending == "expired" else "job_failed"
        )
        task = Task.model_validate(
            {
                "path": record.path,
                "endpoint": record.batch["endpoint"],
                "models": self._permitted(record),
                "defaults": self._defaults,
                "run_options": self._options,
                "headers": self._options.headers,
                "closing": closing,
                "key": record.key,
                "key_file": self._accounts[0],
                "ledger": self._accounts[1],
                "audit": self._audit,
                "routes": self._routes,
                "classifiers": (self._models and self._models("/v1/classify")) or {},
            }
        )
        self._children[record.path] = _Child(task, record.tenant)

    def _permitted(self, record: BatchRecord) -> dict[str, BatchModel] | None:
        """Return the models that the rows may name: those that are served, and that the key of the batch may use."""
        served = None if self._models is None else self._models(record.batch["endpoint"])
        if served is None:
            return None
        return {name: each for name, each in served.items() if not record.models or name in record.models}

    def _on_outcome(self, record: BatchRecord, child: _Child, outcome: Outcome) -> None:
        """Decide what follows the end of a process. For a batch that was cancelled meanwhile, `_advance` does."""
        path = record.path
        if outcome.state == "stopped" or (outcome.state == "failed" and record.status == "validating"):
            if not child.ending:
                self._postpone(record, outcome.message)
            return
        if outcome.state == "failed":
            self._report(path, f"the batch {path.name} failed: {outcome.message} [{outcome.code}]")
        if child.closing:
            self._finish(record)
        elif outcome.state == "finished":
            self._store.transition(path, "finalizing")
        elif outcome.state == "failed":
            # The message may name directories of the gateway.
            error = {"code": outcome.code or "job_failed", "message": _SAID_FAILED, "line": None, "param": None}
            self._store.transition(path, "finalizing", ending="failed", errors=error_list([error]))

    def _finish(self, record: BatchRecord) -> None:
        validation = read_validation(record.path)
        fields = {**({} if validation is None else _fields(validation)), **publish_results(record, self._files)}
        final = "cancelled" if record.status == "cancelling" else record.ending
        self._store.transition(record.path, final, **fields)

    def _end_child(self, path: Path) -> None:
        if (child := self._children.pop(path, None)) is not None:
            child.kill()

    def _stop_children(self) -> None:
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + self._stop_seconds
        while any(child.outcome() is None for child in self._children.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in self._children.values():
            child.kill()
        self._children.clear()

    _stop_seconds = 10.0

    def _report(self, path: Path, sentence: str) -> None:
        """Say a sentence once, until another one is to be said of the same batch."""
        if self._reported.get(path) != sentence:
            self._reported[path] = sentence
            self._on_message(sentence)


_SAID_SLOW = "checking the input file took too long; send fewer or shorter requests in a file"
_SAID_FAILED = "the batch can't continue; the operator's log has the reason"


class _Retry:
    """When a job that stopped is continued."""

    def __init__(self) -> None:
        self._seconds, self._most = _BACKOFF_SECONDS
        self.at = 0.0

    def postpone(self) -> None:
        self.at = time.monotonic() + self._seconds
        self._seconds = min(2 * self._seconds, self._most)


class _Child:
    """The process of a batch. Start it in a thread that outlives it: the process ends with that thread."""

    def __init__(self, task: Task, tenant: str) -> None:
        self.tenant, self.closing = tenant, task.closing is not None
        self.share = 0.0
        self.ending = False
        """Whether it was asked to end."""
        self._deadline = 0.0
        self.began = time.monotonic()
        self._outcome: Outcome | None = None
        with open(task.path / "job.log", "wb", opener=open_private) as log:
            self._process = subprocess.Popen(
                python_module(MODULE, str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the gateway, which then stops its jobs
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(task.model_dump_json().encode())
            self._process.stdin.close()
        except BrokenPipeError:  # killed: `outcome` says so
            pass

    def outcome(self) -> Outcome | None:
        """Return how it ended; None while it runs."""
        if self._outcome is None and self._process.poll() is not None:
            assert self._process.stdout is not None
            with self._process.stdout as pipe:
                printed = pipe.read()
            try:
                self._outcome = Outcome.model_validate_json(printed)
            except ValidationError:  # killed, or an error of its own, which its log has
                self._outcome = Outcome(state="stopped")
        return self._outcome

    def end(self, path: Path) -> None:
        """Let the job cancel its requests and end, as `inflight batch cancel` does; later calls kill it if it has not.

        A job that is just starting removes the request of an earlier run, so the request is repeated.
        """
        if not self.ending:
            self.ending, self._deadline = True, time.monotonic() + _CANCEL_SECONDS
        if time.monotonic() >= self._deadline:
            self._process.kill()
            return
        try:
            job_directory(path).cancel.touch()
        except FileNotFoundError:  # the job has not begun, and nothing can be lost
            self._process.kill()

    def terminate(self) -> None:
        self.ending = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        kill_group(self._process)


def _is_closing(record: BatchRecord) -> bool:
    """Return whether no row of the batch is sent any more."""
    return record.status in ("cancelling", "finalizing")


def _after(validation: Validation) -> tuple[str]:
    return ("failed" if validation.errors else "in_progress",)


def _fields(validation: Validation) -> dict[str, Any]:
    """Return the fields of a batch that its validation gives."""
    if validation.errors:
        return {"errors": error_list([error.model_dump() for error in validation.errors])}
    counts = {"total": validation.total, "completed": 0, "failed": 0}
    return {"model": validation.model, "request_counts": counts}


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
