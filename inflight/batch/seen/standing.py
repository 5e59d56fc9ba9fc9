"""How a job stands, as another process sees it: its lock and its last progress, put together."""

from __future__ import annotations

import shlex
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from inflight.batch.errors import BatchError
from inflight.batch.job_directory import SUFFIX, JobDirectory
from inflight.batch.seen.progress import Progress, State, read_progress

_FRESH_SECONDS = 15.0
"""Progress is written each second; a process without a word for longer hangs, or is gone."""


class Standing(NamedTuple):
    """`state`: a State's value, `beginning`, `killed` or `unknown`. `running`: whether a process is at work.

    `sentence`: why, and what to do. `age`: seconds since the last progress.
    """

    path: Path
    state: str
    running: bool
    sentence: str
    progress: Progress | None = None
    age: float | None = None

    def values(self) -> dict[str, Any]:
        """For JSON."""
        progress = None if self.progress is None else self.progress.model_dump(mode="json")
        done = None if self.progress is None else self.progress.done
        age = None if self.age is None else round(self.age, 1)
        found = {"job": str(self.path), "state": self.state, "running": self.running, "sentence": self.sentence}
        return {**found, "done": done, "age_seconds": age, "progress": progress}


def standing(directory: JobDirectory) -> Standing:
    """How it stands now."""
    running = directory.running  # first: what ends between the two has written its end
    progress = read_progress(directory)
    if progress is None:
        if running is None:
            return Standing(directory.path, "unknown", False, "it is another user's, and can't be looked into")
        if running:
            return Standing(directory.path, "beginning", True, "it has not said yet how it stands")
        return Standing(
            directory.path, "killed", False, f"it was killed before it said how it stands; {_go_on(directory)}"
        )
    age = max(0.0, time.time() - progress.when)
    unseen = running is None or (not running and progress.host != socket.gethostname())
    running = bool(running) or (unseen and progress.state.lives and age < _FRESH_SECONDS)
    state, sentence = _told(directory, progress, running, age)
    return Standing(directory.path, state, running, sentence, progress, age)


def _told(directory: JobDirectory, progress: Progress, running: bool, age: float) -> tuple[str, str]:
    state, sentence = str(progress.state), progress.sentence
    if running and not progress.state.lives:
        return "beginning", "it goes on, and has not said yet how it stands"
    if running:
        silent = age >= _FRESH_SECONDS
        return state, f"process {progress.pid} has said nothing for {age:.0f} s" if silent else sentence
    if progress.state.lives:
        return "killed", f"it was killed, at {_moment(progress.when)} or later; {_go_on(directory)}"
    if progress.state is State.FINISHED:
        return state, f"its summary is {directory.summary}" if directory.summary.is_file() else ""
    return state, f"{sentence}; {_go_on(directory)}" if sentence else _go_on(directory)


def _go_on(directory: JobDirectory) -> str:
    return f"resume with: {resume_command(directory)}"


def resume_command(directory: JobDirectory) -> str:
    return f"inflight batch resume {shlex.quote(str(directory.path))}"


def _moment(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def jobs_in(folder: Path) -> list[JobDirectory]:
    """Those whose directories lie there, by name. Raises BatchError `job_not_found`."""
    paths = sorted(path for path in folder.glob(f"*{SUFFIX}") if (path / "job.json").is_file())
    if not paths:
        raise BatchError(f"there is no job in {folder.absolute()}; name one, or go where it is", "job_not_found")
    return [JobDirectory.find(path) for path in paths]
