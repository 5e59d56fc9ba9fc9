"""Completes the output once every row has a result, and writes the job's manifest and summary."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.batch.job.rows import RowStatus
from inflight.batch.outputs.interface import OnMessage, ignore_message
from inflight.batch.outputs.table_writer import TableWriter
from inflight.batch.reporting.manifest import build_manifest
from inflight.batch.reporting.summary import format_summary
from inflight.batch.session import JobSession


def write_reports(session: JobSession, outputs: Sequence[str]) -> None:
    """Write the manifest and the summary. `outputs`: the addresses of the output. Raises BatchError `disk_full`,
    `job_failed`."""
    notes = [] if session.output is None else session.output.notes()
    manifest = build_manifest(session, outputs, notes)
    session.directory.write(session.directory.manifest, manifest.model_dump_json(indent=2) + "\n")
    session.directory.write(session.directory.summary, format_summary(manifest))


def finalize(session: JobSession, on_message: OnMessage = ignore_message) -> list[str]:
    """Complete the output and record that in the state; return the addresses that were written.

    If it is interrupted, the next run does all of it again, and needs no server for that. Raises BatchError.
    """
    files = session.directory.result_files()
    written = [str(path) for path in files.values()]
    if session.output is not None:
        if session.output.is_incremental and RowStatus.OK in files:
            TableWriter(session.ledger, files[RowStatus.OK], session.output).run()
        written = session.output.finalize(files, on_message)
    write_reports(session, written)
    session.ledger.database.put("outputs", written)
    session.ledger.remember("finished", True)
    return written
