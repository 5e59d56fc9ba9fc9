"""Values that all parts of a job agree on (the first process on any machine sets them), and the head's orders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inflight.batch.errors import map_disk_errors
from inflight.batch.failpoints import failpoint
from inflight.batch.job.spec import Task
from inflight.common.atomic_files import create_once

RETRIEVAL_TASKS: tuple[Task, ...] = ("embed", "rerank")
"""Tasks of the encoders of a job's retrieval."""


@dataclass(frozen=True)
class SharedFacts:
    """Files in the directory of the parts, which the head and all workers see."""

    path: Path

    @property
    def stop(self) -> Path:
        """Through this, the head tells all workers to stop."""
        return self.path / "stop"

    @property
    def build(self) -> Path:
        """The build of the model."""
        return self.path / "build"

    def encoder(self, task: Task) -> Path:
        """The build of the encoder for a task of retrieval."""
        return self.path / f"{task}_build"

    @property
    def dimensions(self) -> Path:
        """The size of the model's vectors."""
        return self.path / "dimensions"

    @property
    def dimensions_checked(self) -> Path:
        """It exists once the head has found that vectors of this size fit the output."""
        return self.path / "dimensions_checked"


def set_once(path: Path, value: str) -> str:
    """Return the content of the file at `path`, creating it with this value if it does not exist.

    Raises BatchError `disk_full`, `job_failed`.
    """
    with map_disk_errors(path.parent):
        create_once(path, value, before_link=lambda: failpoint("agree"), after_link=lambda: failpoint("agreed"))
        return path.read_text(encoding="utf-8")
