"""Values that all parts of a job agree on (the first process on any machine sets them), and the head's orders."""

from __future__ import annotations

from pathlib import Path

from inflight.batch.errors import map_disk_errors
from inflight.batch.failpoints import failpoint
from inflight.batch.job.spec import Task
from inflight.common.atomic_files import create_once

RETRIEVAL_TASKS: tuple[Task, ...] = ("embed", "rerank")
"""Tasks of the encoders of a job's retrieval."""


class SharedFacts:
    """Files in the directory of the parts, which the head and all workers see."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.stop = path / "stop"
        """Through this, the head tells all workers to stop."""
        self.build, self.refine_build, self.dimensions = path / "build", path / "refine_build", path / "dimensions"
        """The builds of the model and of that of --refine-with, and the size of the vectors."""
        self.dimensions_checked = path / "dimensions_checked"
        """It exists once the head has found that vectors of this size fit the output."""

    def encoder(self, task: Task) -> Path:
        """Return the file with the build of the encoder for a task of retrieval."""
        return self._path / f"{task}_build"


def set_once(path: Path, value: str) -> str:
    """Return the content of the file at `path`, creating it with this value if it does not exist.

    Raises BatchError `disk_full`, `job_failed`.
    """
    with map_disk_errors(path.parent):
        create_once(path, value, before_link=lambda: failpoint("agree"), after_link=lambda: failpoint("agreed"))
        return path.read_text(encoding="utf-8")
