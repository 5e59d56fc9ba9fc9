"""Values that all parts of a job agree on; the first process on any machine sets them."""

from __future__ import annotations

from pathlib import Path

from inflight.batch.errors import map_disk_errors
from inflight.batch.failpoints import failpoint
from inflight.common.atomic_files import create_once


def set_once(path: Path, value: str) -> str:
    """Return the content of the file at `path`, creating it with this value if it does not exist.

    Raises BatchError `disk_full`, `job_failed`.
    """
    with map_disk_errors(path.parent):
        create_once(path, value, before_link=lambda: failpoint("agree"), after_link=lambda: failpoint("agreed"))
        return path.read_text(encoding="utf-8")
