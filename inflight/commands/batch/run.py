"""`inflight batch run`: send every row of an input to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.batch.job.directory import JobDirectory
from inflight.batch.storage.addresses import is_local, local_path
from inflight.batch.storage.secret_address import password_warning
from inflight.commands.batch.execute import execute_job, result_options
from inflight.commands.batch.options import job_from_options, job_options, running_options
from inflight.commands.option_sections import SectionedCommand, section


@click.command(cls=SectionedCommand, short_help="Send every row of an input to a model.")
@click.argument("input_address", metavar="INPUT")
@job_options
@running_options
@section(
    "Job",
    click.option(
        "--job",
        type=click.Path(path_type=Path),
        help="Directory of the job's state; outputs that differ only by their suffix need one each."
        "  [default: NAME.job beside a local output, else in the current folder]",
    ),
)
@result_options
def command(input_address: str, job: Path | None, **options: Any) -> None:
    """Send every row of INPUT to a model: JSON lines (of OpenAI's Batch format too), CSV, Parquet, a table, or the
    messages of a queue.

    The model generates an answer, or what --task says: embeds or classifies a text, or reranks documents.

    INPUT and OUTPUT are paths, addresses such as s3://bucket/rows.parquet, or URLs of databases (sqlite:///shop.db).

    The job may be killed at any moment: run the same command again, or `inflight batch resume`, to continue. After
    SIGTERM or Ctrl-C the requests in flight finish; a second one stops at once.

    Exit codes: 0 all rows answered; 3 finished, some rows failed; 4 cancelled; 75 stopped early, run it again;
    1 the job cannot continue; 2 wrong usage.

    \b
      inflight batch run prompts.jsonl --out answers.jsonl
      inflight batch run openai-batch.jsonl --out answers.jsonl --server gpu1:8001 --server gpu2:8001
      inflight batch run tickets.csv --id ticket --template 'Summarize: {{ text }}' --out s3://bucket/out.parquet
      inflight batch run sqlite:///shop.db --table products --template @ask.txt --out sqlite:///shop.db --column blurb
      inflight batch run prompts.jsonl --out answers.jsonl --ephemeral my-engine --price-per-hour 2.49
      inflight batch run asked.csv --retrieve postgresql://db/shop --retrieve-table docs --template @ask.txt --out a.csv
      inflight batch run 'postgresql://app:${PGPASSWORD}@db/shop?queue=jobs' --out answers.jsonl
      inflight batch run sqs://jobs --forever --out answers.jsonl
      inflight batch run nats://127.0.0.1:4222/JOBS --until-empty 60 --out answers.jsonl
      inflight batch run docs.parquet --task embed --id id --out 'postgresql://app:${PGPASSWORD}@db/shop' --table docs
    """  # fmt: skip
    described = job_from_options(input_address, options)
    stores = (described.input, described.output, described.retrieval)
    for address in (store.address for store in stores if store is not None):
        if (sentence := password_warning(address)) is not None:
            click.echo(f"Warning: {sentence}", err=True)
    directory = JobDirectory.from_output(described.output, job)
    folder = local_path(described.output.address).parent
    if is_local(described.output.address) and not directory.state.exists() and not folder.is_dir():
        raise click.BadParameter(f"there is no folder {folder}; create it, or correct the path", param_hint="'--out'")
    execute_job(described, directory, options)
