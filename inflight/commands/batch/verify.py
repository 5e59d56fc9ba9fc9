"""`inflight batch verify`: check that every row has exactly one record."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from inflight_client import InflightError
from inflight_client.address import parse_header

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import RunOptions
from inflight.batch.verify.checker import verify
from inflight.batch.verify.replay import replay as send_again
from inflight.batch.verify.replay import share_of
from inflight.commands.options.numbers import ParsedValue


@click.command(short_help="Check that every row has exactly one record.")
@click.argument("path")
@click.option(
    "--replay",
    type=ParsedValue("share", share_of),
    metavar="SHARE",
    help="Also send this share of the answered rows again, and compare the answers: 1%.",
)
@click.option("--server", "servers", multiple=True, help="For --replay: server (repeatable).  [default: the job's]")
@click.option("--header", multiple=True, metavar="NAME: VALUE", help="For --replay: header of requests (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(path: str, replay: float | None, servers: tuple[str, ...], header: tuple[str, ...], as_json: bool) -> None:
    """Read the input and output of the job at PATH again and compare them.

    PATH is the job's directory, or its output's path or address.

    Every row of the input must have exactly one record: an answer, an error or a dead letter. The output must contain
    every answer. The check uses nothing of the job's state except its original input and whether it is finished.
    Exit codes: 0 if everything agrees; 1 if it does not or the job is not finished.

    With --replay, the same rows each time are sent again, and the command names answers that are different now, from
    which token on, by how much the likeliest tokens differ there, and a model that is not the one that answered the
    job. Exit code 1 if any answer is different. Answers repeat on a server with `inflight serve --reproducible`.

    \b
      inflight batch verify answers.jsonl
      inflight batch verify answers.jsonl --replay 1% --server 127.0.0.1:8001
      inflight batch verify answers.job --json | jq .agrees
    """  # fmt: skip
    if (servers or header) and replay is None:
        raise click.UsageError("--server and --header are for --replay; give it a share of the rows, such as 1%.")
    directory = JobDirectory.find(path)
    verdict = verify(directory)
    again = None if replay is None else send_again(directory, replay, _options(directory, servers, header))
    if as_json:
        values = {"complete": verdict.complete, "consistent": verdict.consistent, **asdict(verdict)}
        click.echo(json.dumps(values if again is None else {**values, "replay": {"same": again.same, **asdict(again)}}))
    else:
        for sentence in (*verdict.messages(), *(again.messages() if again else ())):
            click.echo(sentence)
    sys.exit(0 if verdict.complete and (again is None or again.same) else 1)


def _options(directory: JobDirectory, servers: tuple[str, ...], header: tuple[str, ...]) -> RunOptions:
    """Return the options of the job's run, with other servers if they are named."""
    try:
        headers = dict(map(parse_header, header))
    except InflightError as error:
        raise click.BadParameter(str(error), param_hint="'--header'") from None
    named = {"servers": servers, "ephemeral": None} if servers else {}
    return directory.job().run_options.model_copy(update={"headers": headers, **named})
