"""`inflight batch retry`: ask rows once more that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.batch.job_directory import JobDirectory
from inflight.commands.batch_life import end_options, live
from inflight.commands.batch_options import asked_running, running_options


@click.command(short_help="Ask rows once more that failed.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="CODE", help="Rows that failed of this code, again for each.")
@running_options
@end_options
def command(path: Path, only: tuple[str, ...], **asked: Any) -> None:
    """Ask rows of the finished job at PATH once more that failed, and put their new records in place of the old ones.

    Without --only those that were asked and refused or given up, and those that killed engines; by their codes also
    rows that never were asked. `inflight batch status` counts them by code. If it is killed, `resume` goes on with it.

    \b
      inflight batch retry answers.jsonl
      inflight batch retry answers.jsonl --only deadline_exceeded --row-timeout 3600
      inflight batch retry answers.jsonl --only row_kills_engine --max-kills 1
    """
    directory = JobDirectory.find(path)
    job = directory.job()
    live(job.model_copy(update={"running": asked_running(asked, job.running)}), directory, asked, again=only)
