"""The files of a job, beside its output: spec, state, results and reports."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.failpoints import failpoint
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import Job, OutputSpec
from inflight.batch.storage.addresses import absolute_address, is_local, is_on_local_disk, local_path
from inflight.batch.storage.secret_address import masked
from inflight.common.atomic_files import atomic_writer, make_directory

SUFFIX = ".job"


class JobDirectory:
    """The directory of a job. For an output `answers.jsonl` on a local disk:

    - `answers.jsonl`, `answers.errors.jsonl`, `answers.dead.jsonl`: one line per row, by its status.
    - `answers.job/job.json`: the `Job`; `state.db`: the state (SQLite). Only the owner can read both.
    - `answers.job/lock`: held while a process runs the job.
    - `answers.job/progress.json`: the progress, written each second; `manifest.json`, `summary.txt`: at the end.
    - `answers.job/created_files.json`: output files that were created from the job's lines.
    - `answers.job/cancel`: exists once a user has asked to cancel the job.

    For every other output, the three files of lines are in the job's directory, and the output is created from them.
    """

    def __init__(self, path: Path, output: OutputSpec | None = None) -> None:
        self.path, self._output = path, output
        self.state, self.cancel = path / "state.db", path / "cancel"
        self.progress, self.manifest, self.summary = (
            path / "progress.json",
            path / "manifest.json",
            path / "summary.txt",
        )

    @classmethod
    def from_output(cls, output: OutputSpec, path: Path | None = None) -> JobDirectory:
        """Return the directory of the job with this output; `path` is given if it is not beside a local output."""
        return cls(path or default_directory(output), output)

    @classmethod
    def find(cls, named: str | Path) -> JobDirectory:
        """Find an existing job by its own path, or by its output's path or address. If only other users can read the
        job, it has no output.

        Raises BatchError `job_not_found`, `storage_denied`.
        """
        address = str(named)
        path = local_path(address)
        if path.name in ("", ".."):
            path = path.resolve()
        if (own := cls._at(path)) is not None:
            return own
        names = (
            (path.with_suffix(SUFFIX), path.with_name(path.name + SUFFIX)) if path.name and is_local(address) else ()
        )
        beside_it = [job for job in map(cls._at, names) if job is not None]
        jobs, absolute = (*beside_it, *_jobs_here()), absolute_address(address)
        writing_there = [job for job in jobs if job._output is not None and job._output.address == absolute]
        paths = {job.path.resolve(): str(job.path) for job in writing_there}
        if len(paths) > 1:
            raise BatchError(
                f"several jobs write to {masked(address)}; name one of {', '.join(paths.values())}", "job_not_found"
            )
        moved = (job for job in beside_it if job._is_named_like(path))  # together with its output
        if match := next(iter((*writing_there, *moved)), None):
            return match
        raise BatchError(
            f"there is no job at {masked(address)}; name its directory (NAME{SUFFIX}) or its output, and run this in "
            f"the folder where it was started",
            "job_not_found",
        )

    @classmethod
    def _at(cls, path: Path) -> JobDirectory | None:
        try:
            if not (path / "job.json").is_file():
                return None
        except PermissionError:
            raise BatchError(f"{path} refuses access; use the account that runs the job", "storage_denied") from None
        try:
            return cls(path, cls(path).job().output)
        except BatchError as error:
            if error.code != "storage_denied":
                raise
            return cls(path)

    def _is_named_like(self, path: Path) -> bool:
        """Return whether a path beside it means it: `answers.csv` is not the output of the job that writes
        `answers.jsonl`. True if only other users can read the output."""
        suffix = None if self._output is None else Path(self._output.address).suffix
        return suffix is None or path.suffix in ("", suffix) or self.path.name == path.name + SUFFIX

    @property
    def output(self) -> OutputSpec:
        assert self._output is not None
        return self._output

    def result_file(self, status: RowStatus) -> Path:
        """Return the file with the lines of rows with this status."""
        if self.writes_output:
            output = local_path(self.output.address)
            return (
                output if status is RowStatus.OK else output.with_name(f"{output.stem}.{_NAMES[status]}{output.suffix}")
            )
        return self.path / f"{_NAMES[status]}.jsonl"

    def result_files(self) -> dict[RowStatus, Path]:
        """Return the files of lines that exist."""
        return {status: path for status in RowStatus if (path := self.result_file(status)).exists()}

    @property
    def writes_output(self) -> bool:
        """Whether the answers file is the output itself: JSON lines on a local disk, not compressed."""
        address = self.output.address
        return (
            self.output.format in (None, "jsonl")
            and is_local(address)
            and local_path(address).suffix in (".jsonl", ".ndjson", ".json")
        )

    def job(self) -> Job:
        """Read the job. Raises BatchError if it is missing or damaged."""
        path = self.path / "job.json"
        try:
            return Job.model_validate_json(path.read_bytes())
        except PermissionError:
            raise BatchError(f"{path} refuses access; use the account that runs the job", "storage_denied") from None
        except (OSError, ValidationError) as error:
            raise BatchError(f"{path} is not a job: {str(error).splitlines()[0]}", "job_damaged") from None

    def write_job(self, job: Job) -> None:
        self.write(self.path / "job.json", job.model_dump_json(indent=2) + "\n")

    def created_files(self) -> list[str]:
        """Return the output files that the job has created, or was about to."""
        try:
            return list(json.loads((self.path / "created_files.json").read_bytes()))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise BatchError(
                f"{self.path / 'created_files.json'} can't be read ({error}); remove it and the output files of the "
                f"job, and resume the job",
                "job_damaged",
            ) from None

    def record_created_file(self, address: str) -> None:
        self.write(self.path / "created_files.json", json.dumps([*self.created_files(), address]) + "\n")

    def write(self, path: Path, text: str) -> None:
        """Replace a small file atomically. Raises BatchError `disk_full`, `job_failed`."""
        with map_disk_errors(self.path):
            failpoint(f"{path.name}.write")
            with atomic_writer(
                path,
                mode=0o600 if path.name == "job.json" else 0o666,
                temporary=path.with_name(f".{path.name}.{os.getpid()}"),
                durable=path != self.progress,  # the progress is written again each second
                before_rename=lambda: failpoint(f"{path.name}.rename"),
                after_rename=lambda: failpoint(f"{path.name}.renamed"),
            ) as file:
                file.write(text.encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and lock it. Raises BatchError `job_running` if another process holds the lock,
        `job_mismatch` if the directory belongs to a job with another output.
        """
        with map_disk_errors(self.path):
            make_directory(self.path)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _try_lock(lock, seconds=_LOCK_TIMEOUT):
                raise BatchError(
                    f"another process is running the job at {self.path}; `inflight batch status` shows it",
                    "job_running",
                )
            self._check_output()
            yield
        finally:
            os.close(lock)

    @property
    def is_running(self) -> bool | None:
        """Whether a process on this machine holds the lock; None if it is another user's and cannot be read."""
        try:
            lock = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            return None
        except OSError:
            return False
        try:
            return not _try_lock(lock, shared=True)
        finally:
            os.close(lock)

    def _check_output(self) -> None:
        """Refuse the directory of another output: names that differ only by suffix share a default directory."""
        try:
            other = self.job().output.address
        except BatchError:  # it has not started, or its state checks the job itself
            return
        own = self.output.address
        if other != own:
            name = Path(masked(own).partition("?")[0]).name
            raise BatchError(
                f"{self.path} holds the job that writes {masked(other)}, and this one writes {masked(own)}; give it "
                f"another directory: --job {shlex.quote(f'{self.path.parent / name}{SUFFIX}')}",
                "job_mismatch",
            )


_NAMES = {RowStatus.OK: "answers", RowStatus.ERROR: "errors", RowStatus.DEAD: "dead"}


def default_directory(output: OutputSpec) -> Path:
    """Return the default directory: beside a local output, otherwise by the output's name in the current folder."""
    if is_local(output.address):
        return local_path(output.address).with_suffix(SUFFIX)
    address = masked(output.address).partition("://")[2].partition("?")[0].rpartition("@")[2]
    named = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(address).name if is_on_local_disk(output.address) else address)
    table = f"-{output.table}" if output.table else ""
    return Path(f"{Path(named).stem or 'output'}{table}{SUFFIX}".strip("-"))


def _jobs_here() -> Iterator[JobDirectory]:
    """Yield the readable jobs in the current folder."""
    for path in sorted(Path().glob(f"*{SUFFIX}")):
        with suppress(BatchError):
            yield JobDirectory(path, JobDirectory(path).job().output)


_LOCK_TIMEOUT = 0.5
"""Seconds to retry a lock, since a check of whether a job runs holds it for a moment."""


def _try_lock(lock: int, shared: bool = False, seconds: float = 0.0) -> bool:
    """Return whether the lock was acquired. `shared`: for readers, which do not exclude each other."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
