"""What a finished job leaves for people and programs: `manifest.json` and `summary.txt`."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.batch.reporting.manifest import build_manifest, write_manifest
from inflight.batch.reporting.summary import format_summary
from inflight.batch.session import JobSession


def write_reports(session: JobSession, outputs: Sequence[str]) -> None:
    """Write both. `written`: the addresses of the output. Raises BatchError `disk_full`, `job_failed`."""
    notes = [] if session.output is None else session.output.notes()
    manifest = build_manifest(session, outputs, notes)
    write_manifest(session.directory, manifest)
    session.directory.write(session.directory.summary, format_summary(manifest))
