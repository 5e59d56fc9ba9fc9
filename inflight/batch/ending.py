"""What is done once every row has its outcome: the output made whole, and the job's own account of itself."""

from __future__ import annotations

from inflight.batch.delivery import Delivery
from inflight.batch.opening import OpenJob
from inflight.batch.row import Kind
from inflight.batch.seen.account import give_account


def finish(job: OpenJob) -> list[str]:
    """Make the output, and say so in the state; the addresses of what was written.

    Whenever it is broken off, the next life does all of it again, and needs no server for that. Raises BatchError.
    """
    files = {kind: path for kind in Kind if (path := job.directory.lines(kind)).exists()}
    written = [str(path) for path in files.values()]
    if job.destination is not None:
        if job.destination.takes_rows and Kind.OK in files:
            Delivery(job.ledger, files[Kind.OK], job.destination).run()
        written = job.destination.finish(files)
    give_account(job, written)
    job.ledger.database.put("written", written)
    job.ledger.remember("finished", True)
    return written
