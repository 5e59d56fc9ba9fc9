"""What is done once every row has its outcome: the output made whole, and the job's own account of itself."""

from __future__ import annotations

from inflight.batch.job.rows import RowStatus
from inflight.batch.outputs.table_writer import TableWriter
from inflight.batch.reporting.reports import write_reports
from inflight.batch.session import JobSession


def finalize(session: JobSession) -> list[str]:
    """Make the output, and say so in the state; the addresses of what was written.

    Whenever it is broken off, the next life does all of it again, and needs no server for that. Raises BatchError.
    """
    files = {kind: path for kind in RowStatus if (path := session.directory.result_file(kind)).exists()}
    written = [str(path) for path in files.values()]
    if session.output is not None:
        if session.output.is_incremental and RowStatus.OK in files:
            TableWriter(session.ledger, files[RowStatus.OK], session.output).run()
        written = session.output.finalize(files)
    write_reports(session, written)
    session.ledger.database.put("outputs", written)
    session.ledger.remember("finished", True)
    return written
