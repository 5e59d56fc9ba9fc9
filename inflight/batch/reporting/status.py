"""How a job stands, as another process sees it: its lock and its last progress, put together."""

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
"""Progress is written each second; a process without a word for longer hangs, or is gone."""


class JobStatus(NamedTuple):
    """`state`: a State's value, `starting`, `killed` or `unknown`. `running`: whether a process is at work.

    `message`: why, and what to do. `age`: seconds since the last progress.
    """

    path: Path
    state: str
    running: bool
    message: str
    progress: JobProgress | None = None
    age: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        progress = None if self.progress is None else self.progress.model_dump(mode="json")
        done = None if self.progress is None else self.progress.fraction_done
        age = None if self.age is None else round(self.age, 1)
        found = {"job": str(self.path), "state": self.state, "running": self.running, "message": self.message}
        return {**found, "fraction_done": done, "age_seconds": age, "progress": progress}


def job_status(directory: JobDirectory) -> JobStatus:
    """How it stands now."""
    running = directory.is_running  # first: what ends between the two has written its end
    progress = read_progress(directory)
    if progress is None:
        if running is None:
            return JobStatus(directory.path, "unknown", False, "it is another user's, and can't be looked into")
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
        return "starting", "it resumes, and has not reported progress yet"
    if running:
        silent = age >= _STALE_SECONDS
        return state, f"process {progress.pid} has said nothing for {age:.0f} s" if silent else sentence
    if progress.state.is_active:
        return "killed", f"it was killed, at {_moment(progress.timestamp)} or later; {_resume_hint(directory)}"
    if progress.state is JobState.FINISHED:
        return state, f"its summary is {directory.summary}" if directory.summary.is_file() else ""
    return state, f"{sentence}; {_resume_hint(directory)}" if sentence else _resume_hint(directory)


def _resume_hint(directory: JobDirectory) -> str:
    return f"resume with: {resume_command(directory)}"


def resume_command(directory: JobDirectory) -> str:
    return f"inflight batch resume {shlex.quote(str(directory.path))}"


def _moment(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def find_jobs(folder: Path) -> list[JobDirectory]:
    """Those whose directories lie there, by name. Raises BatchError `job_not_found`."""
    paths = sorted(path for path in folder.glob(f"*{SUFFIX}") if (path / "job.json").is_file())
    if not paths:
        raise BatchError(f"there is no job in {folder.absolute()}; name one, or go where it is", "job_not_found")
    return [JobDirectory.find(path) for path in paths]
