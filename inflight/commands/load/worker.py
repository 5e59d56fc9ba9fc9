"""`inflight load worker`: send a part of a load that another machine controls."""

from __future__ import annotations

import subprocess
import sys

import click


@click.command(short_help="Send requests for a run on another machine.")
@click.argument("master", metavar="HOST:PORT")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Number of worker processes.")
def command(master: str, processes: int) -> None:
    """Send requests for a run that `inflight load run --expect-workers N --bind HOST:PORT` starts on another machine.

    The worker receives the plan and its files from that machine, sends the records back and ends with the run.

    \b
      inflight load worker 10.0.0.5:5557
      inflight load worker 10.0.0.5:5557 --processes 4
    """  # fmt: skip
    host, colon, port = master.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise click.BadParameter("the master's address must be HOST:PORT.", param_hint="'HOST:PORT'")
    arguments = [sys.executable, "-P", "-m", "loadtests.generator.main", "--worker-of", master]
    click.echo(f"Waiting for the run at {master}.", err=True)
    # In sessions of their own: a Ctrl-C at the terminal is passed on below, so that the workers report their records.
    workers = [subprocess.Popen(arguments, start_new_session=True) for _ in range(processes)]
    try:
        codes = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    sys.exit(1 if any(codes) else 0)
