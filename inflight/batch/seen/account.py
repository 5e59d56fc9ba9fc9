"""What a finished job leaves for people and programs: `manifest.json` and `summary.txt`."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.batch.opening import OpenJob
from inflight.batch.seen.manifest import make_manifest, write_manifest
from inflight.batch.seen.summary import summary


def give_account(job: OpenJob, written: Sequence[str]) -> None:
    """Write both. `written`: the addresses of the output. Raises BatchError `disk_full`, `job_failed`."""
    notes = [] if job.destination is None else job.destination.notes()
    manifest = make_manifest(job, written, notes)
    write_manifest(job.directory, manifest)
    job.directory.write(job.directory.summary, summary(manifest))
