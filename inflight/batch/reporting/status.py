"""The status of a job as another process sees it, from its lock and its last progress."""

from __future__ import annotations

import shlex
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import SUFFIX, JobDirectory
from inflight.batch.reporting.progress import JobProgress, JobState, read_progress

_STALE_SECONDS = 15.0
"""Progress is written each second; a process that writes none for this long hangs or is gone."""


class JobStatus(NamedTuple):
    """`state`: a JobState's value, `starting`, `killed` or `unknown`. `running`: whether a process runs the job.

    `message`: the reason, and what to do. `age`: seconds since the last progress.
    """

    path: Path
    state: str
    running: bool
    message: str
    progress: JobProgress | None = None
    age: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the status in a form for JSON."""
        progress = None if self.progress is None else self.progress.model_dump(mode="json")
        done = None if self.progress is None else self.progress.fraction_done
        age = None if self.age is None else round(self.age, 1)
        values = {"job": str(self.path), "state": self.state, "running": self.running, "message": self.message}
        return {**values, "fraction_done": done, "age_seconds": age, "progress": progress}


def job_status(directory: JobDirectory) -> JobStatus:
    """Return the current status."""
    running = directory.is_running  # read first: a job that ends in between has written its last progress
    progress = read_progress(directory)
    if progress is None:
        if running is None:
            return JobStatus(directory.path, "unknown", False, "it belongs to another user and can't be read")
        if running:
            return JobStatus(directory.path, "starting", True, "it has not reported any progress yet")
        return JobStatus(
            directory.path, "killed", False, f"it was killed before it reported progress; {_resume_hint(directory)}"
        )
    age = max(0.0, time.time() - progress.timestamp)
    unseen = running is None or (not running and progress.host != socket.gethostname())
    running = bool(running) or (unseen and progress.state.is_active and age < _STALE_SECONDS)
    state, sentence = _describe(directory, progress, running, age)
    return JobStatus(directory.path, state, running, sentence, progress, age)


def _describe(directory: JobDirectory, progress: JobProgress, running: bool, age: float) -> tuple[str, str]:
    state, sentence = str(progress.state), progress.message
    if running and not progress.state.is_active:
        return "starting", "it is resuming and has not reported progress yet"
    if running:
        silent = age >= _STALE_SECONDS
        return state, f"process {progress.pid} has not reported progress for {age:.0f} s" if silent else sentence
    if progress.state.is_active:
        moment = time.strftime("%H:%M:%S", time.localtime(progress.timestamp))
        return "killed", f"it was killed, at {moment} or later; {_resume_hint(directory)}"
    if progress.state is JobState.FINISHED:
        return state, f"its summary is {directory.summary}" if directory.summary.is_file() else ""
    return state, f"{sentence}; {_resume_hint(directory)}" if sentence else _resume_hint(directory)


def _resume_hint(directory: JobDirectory) -> str:
    return f"resume with: {resume_command(directory)}"


def resume_command(directory: JobDirectory) -> str:
    return f"inflight batch resume {shlex.quote(str(directory.path))}"


def find_jobs(folder: Path) -> list[JobDirectory]:
    """Return the jobs in the folder, by name. Raises BatchError `job_not_found`."""
    paths = sorted(path for path in folder.glob(f"*{SUFFIX}") if (path / "job.json").is_file())
    if not paths:
        raise BatchError(f"there is no job in {folder.absolute()}; name a job or change to its folder", "job_not_found")
    return [JobDirectory.find(path) for path in paths]
